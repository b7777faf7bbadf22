//! Functions by which a program restricts its system calls.

use std::ffi::{c_int, c_long, c_ulong};

use farcall_stats::PathReason;

use super::export;
use crate::{confined, epoll, libc_next, sock};

/// Called before the program installs a filter.
pub(super) fn enter() {
    sock::each(|fd, sock| {
        sock.demote(PathReason::Confined);
        // Makes sure that all of the ring can be read without another system call.
        sock.unread_bytes();
        epoll::release(fd);
    });
    confined::set();
}

/// Returns whether a call of `seccomp` restricts system calls, and does not only inquire.
pub(super) fn restricts(operation: usize) -> bool {
    operation == libc::SECCOMP_SET_MODE_STRICT as usize || operation == libc::SECCOMP_SET_MODE_FILTER as usize
}

export! {
    fn prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            enter();
        }
        // SAFETY: what the arguments are depends on `option`; the kernel alone uses them, and checks pointers.
        unsafe { libc_next::prctl(option, second, third, fourth, fifth) }
    }
}

/// Called before the system call `prctl`.
pub(super) fn before_prctl(option: c_long) {
    if option == c_long::from(libc::PR_SET_SECCOMP) {
        enter();
    }
}
