//! Programs that restrict their system calls (seccomp): afterwards the library makes none that the program does not
//! make.
//!
//! Before the filter is installed all connections return to TCP, and epoll objects get back what the program asked for.
//! Bytes that were received and not read stay in the ring. They are read, and reported as readiness, without a system
//! call; everything else goes to the C library's function that the program called.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_stats::PathReason;
use libc::{iovec, pollfd};

use crate::io::{self, Way};
use crate::ring::Pull;
use crate::sock::{self, Sock};
use crate::{epoll, errno};

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program restricts its system calls.
#[inline]
pub fn is_confined() -> bool {
    IS_CONFINED.load(Acquire)
}

/// Called before the program installs a filter.
pub fn enter() {
    sock::each(|fd, sock| {
        sock.demote(PathReason::Confined);
        // Makes sure that all of the ring can be read without another system call.
        io::unread_bytes(sock);
        epoll::release(fd);
    });
    IS_CONFINED.store(true, Release);
}

/// Receives from what was left in the ring.
///
/// # Safety
/// The buffers are the program's, and can be written.
pub unsafe fn receive(sock: &Sock, buffers: &[iovec], flags: c_int) -> Way {
    let Some(link) = sock.link().filter(|_| io::unread_bytes(sock) > 0) else { return Way::Kernel };
    let Some(_held) = link.inn.lock_receiver() else {
        errno::set(libc::EAGAIN);
        return Way::Done(-1);
    };
    let how = match flags {
        _ if flags & libc::MSG_PEEK != 0 => Pull::Peek,
        _ if flags & libc::MSG_TRUNC != 0 => Pull::Forget,
        _ => Pull::Take,
    };
    // SAFETY: the receiver's lock is held; the buffers can be written, by this function's contract.
    match unsafe { link.inn.pull(buffers, 0, how) } {
        // Another thread was faster, or no byte was requested.
        0 => Way::Kernel,
        len => Way::Done(len as isize),
    }
}

/// Reports the descriptors that can be read from what was left in rings. Returns their number; if it is 0, the kernel
/// knows everything.
pub fn poll(fds: &mut [pollfd]) -> c_int {
    const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
    let mut found = 0;
    for entry in fds.iter_mut() {
        let can_be_read = sock::get(entry.fd).is_some_and(|sock| io::unread_bytes(&sock) > 0);
        entry.revents = if can_be_read { entry.events & IN } else { 0 };
        found += c_int::from(entry.revents != 0);
    }
    found
}
