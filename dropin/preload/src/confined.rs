//! State of programs that restrict their system calls (seccomp): afterwards the library makes no system call of its
//! own.
//!
//! Before the filter is installed all connections return to TCP, and the events that the program requested are restored
//! in epoll objects. Bytes that were received and not read stay in the ring. They are read, and reported as readiness,
//! without a system call; all other calls are passed to the C library's function.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program restricts its system calls.
#[inline]
pub fn is_confined() -> bool {
    IS_CONFINED.load(Acquire)
}

/// Records that the program restricts its system calls from now on.
pub fn set() {
    IS_CONFINED.store(true, Release);
}
