//! The Unix sockets by which accepting ends find connecting ones.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use farcall_stats::PathReason;
use rustix::fs;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::own_fds;

pub(super) fn create(path: &Path) -> Option<RawFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let address = SocketAddrUnix::new(path).ok()?;
    let bound = bind(&listener, &address).or_else(|error| match error {
        // The file is that of an earlier connection with the same addresses.
        Errno::ADDRINUSE => fs::unlink(path).and_then(|()| bind(&listener, &address)),
        error => Err(error),
    });
    bound.and_then(|()| listen(&listener, 1)).ok()?;
    let own_fd = own_fds::adopt(listener);
    if own_fd.is_none() {
        let _ = fs::unlink(path);
    }
    own_fd
}

/// Removes the file of a rendezvous socket.
pub fn forget(socket: RawFd) {
    let address = rustix::net::getsockname(own_fds::borrow(socket)).ok();
    let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
    if let Some(path) = address.as_ref().and_then(|address| address.path()) {
        let _ = fs::unlink(path.as_ref());
    }
}

/// Returns the path of the socket of a connection, which both ends derive from its addresses.
pub(super) fn path(fd: c_int, connected: SocketAddr, accepted: SocketAddr) -> Option<PathBuf> {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the cookie.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    if result != 0 {
        return None;
    }
    let name = fnv(format!("{cookie} {connected} {accepted}").as_bytes());
    Some(farcall_shm::private_runtime_dir().ok()?.join(format!("run-{name:032x}")))
}

/// Returns the 128-bit FNV-1a hash, for short names that do not depend on a build.
fn fnv(bytes: &[u8]) -> u128 {
    let step =
        |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B);
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

pub(super) fn is_own_user(socket: BorrowedFd<'_>) -> bool {
    // Not rustix's, whose pid cannot be the 0 that the kernel reports for a process of another pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, a ucred.
    let result = unsafe {
        let value = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut len)
    };
    result == 0 && credentials.uid == rustix::process::geteuid().as_raw()
}

/// Connects to the other end's socket; `None` if that does not listen.
pub(super) fn connect_to(path: &Path) -> Result<Option<OwnedFd>, PathReason> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(|_| PathReason::NoResources)?;
    let address = SocketAddrUnix::new(path).map_err(|_| PathReason::NoResources)?;
    match connect(&socket, &address) {
        // One that is about to listen, or of a process that was killed.
        Err(Errno::CONNREFUSED) => return Ok(None),
        Err(_) => return Err(PathReason::PeerNotAccelerated),
        Ok(()) => {}
    }
    if !is_own_user(socket.as_fd()) {
        return Err(PathReason::AnotherUser);
    }
    Ok(Some(socket))
}
