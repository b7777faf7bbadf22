//! Programs that restrict their system calls (seccomp): afterwards the library makes none that the program does not
//! make.
//!
//! Before the filter is installed all connections return to TCP, and epoll objects get back what the program asked for.
//! Bytes that were received and not read stay in the ring. They are read, and reported as readiness, without a system
//! call; everything else goes to the C library's function that the program called.

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
