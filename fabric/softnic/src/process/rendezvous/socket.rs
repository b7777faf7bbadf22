//! Messages and descriptors over a Unix socket, and the credentials of its other end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use farcall_verbs::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{self, PidfdFlags};

use super::protocol::MAX_FRAME_BYTES;

/// Maximum number of descriptors per message: those of a RoCEv2 port that processes share.
pub(crate) const MAX_FDS: usize = 66;

/// Sends one message.
pub(crate) fn send_frame(
    socket: BorrowedFd<'_>,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    sendmsg(socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Returns whether a message of any length can be sent: a socket counts as full long before it is.
pub(crate) fn accepts_frames(socket: BorrowedFd<'_>) -> bool {
    is_ready(socket, PollFlags::OUT)
}

fn is_ready(fd: BorrowedFd<'_>, what: PollFlags) -> bool {
    is_ready_within(fd, what, Duration::ZERO)
}

fn is_ready_within(fd: BorrowedFd<'_>, what: PollFlags, time: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, what)];
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

/// Waits until a message or the end of the stream has arrived. Returns `false` if that takes longer than `time`.
pub(crate) fn wait_for_frame(socket: BorrowedFd<'_>, time: Duration) -> bool {
    is_ready_within(socket, PollFlags::IN, time)
}

/// Receives one message; `None` at the end of the stream. A message that is too long is returned empty, which no
/// decoder accepts.
pub(crate) fn recv_frame(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = [0; MAX_FRAME_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let len_bytes = if got.flags.contains(ReturnFlags::TRUNC) { 0 } else { got.bytes };
    Ok((got.bytes > 0).then(|| (bytes[..len_bytes].to_vec(), fds)))
}

/// Returns the credentials of the other end: for a listener's client its creator, for a connected client the process
/// that listens.
pub(super) fn credentials(socket: BorrowedFd<'_>) -> Result<libc::ucred> {
    // Does not use rustix, whose `Pid` cannot be the 0 that the kernel reports for a process of another pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `credentials`, which has that size.
    let result = unsafe {
        let value = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len)
    };
    if result != 0 {
        return Err(Error::os("check a peer's credentials", "SO_PEERCRED", std::io::Error::last_os_error()));
    }
    Ok(credentials)
}

/// Returns a pidfd of the process at the other end, which becomes readable when the process exits.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `fd`, which has that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if result == 0 && fd >= 0 {
        // SAFETY: the kernel has created the descriptor for this call, so no other code owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        return Ok(fd);
    }
    // Before Linux 6.5. The pid could be reused between the two calls, but the socket to the process is open, so it
    // exists.
    let pid = process::Pid::from_raw(credentials(socket)?.pid).ok_or_else(|| Error::Unsupported {
        operation: "watch a peer process",
        provider: "softnic",
        what: "the peer is in another pid namespace and the kernel is older than 6.5".into(),
    })?;
    process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|e| Error::os("pidfd_open", "watch a peer process", e))
}

/// Returns whether a pidfd indicates that its process has exited.
pub(crate) fn has_exited(pidfd: &OwnedFd) -> bool {
    is_ready(pidfd.as_fd(), PollFlags::IN)
}
