//! Descriptors of the library's own: out of the way of the program's, which does not know of them.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use rustix::io;

use crate::fd_set::{FDS, FdSet};

static OURS: FdSet = FdSet::new();
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Lowest number that the library has had.
static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);
/// Lowest number that the library may still have: lower ones were given up.
static NEXT: AtomicI32 = AtomicI32::new(0);
/// Threads that are inside of [`while_ours`].
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Number of descriptors that a program may open between two connections before one of them has the number of one of
/// the library's.
const SLACK: c_int = 32;

/// Returns whether a descriptor belongs to the library.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    OURS.contains(fd)
}

/// Returns whether the library has any descriptors.
pub fn are_there() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Moves a descriptor to the upper quarter of all that the process may have; `None` if the library has all of these. As
/// the program comes near, the library gives them up (`descriptors::make_way`).
pub fn keep(fd: OwnedFd) -> Option<RawFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = limit.min(FDS as u64);
    let kept = (COUNT.load(Relaxed) < limit / 4)
        .then(|| io::fcntl_dupfd_cloexec(&fd, NEXT.load(SeqCst).max((limit / 4 * 3) as c_int)).ok());
    let kept = kept.flatten().map(IntoRawFd::into_raw_fd);
    // By the kernel's call: the C library's `close` is ours.
    // SAFETY: given up by its owner.
    unsafe { io::close(fd.into_raw_fd()) };
    let kept = kept?;
    OURS.insert(kept);
    COUNT.fetch_add(1, Relaxed);
    LOWEST.fetch_min(kept, Relaxed);
    Some(kept)
}

/// Returns the lowest descriptor of the library if the program, which has just opened `fd`, may soon need its number.
#[inline]
pub fn in_the_way_of(fd: c_int) -> Option<RawFd> {
    if fd.saturating_add(SLACK) < LOWEST.load(Relaxed) {
        return None;
    }
    let lowest = next_from(0).map_or(c_int::MAX, |lowest| lowest as c_int);
    LOWEST.store(lowest, Relaxed);
    (fd.saturating_add(SLACK) >= lowest).then_some(lowest)
}

/// Closes one.
pub fn close(fd: RawFd) {
    if OURS.remove(fd) {
        COUNT.fetch_sub(1, Relaxed);
        // SAFETY: it was the library's, and is not any more.
        unsafe { io::close(fd) };
    }
}

/// Borrows a descriptor of the library for a call.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers have a use of the socket that keeps it open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Runs a call that does not wait while a number is the library's; not if it was given up.
pub fn while_ours(fd: RawFd, call: impl FnOnce()) {
    // Counted first: `forget` sees the count, or this thread sees that the number was given up.
    INSIDE.fetch_add(1, SeqCst);
    if OURS.contains(fd) {
        call();
    }
    INSIDE.fetch_sub(1, SeqCst);
}

/// Maximum number of times that a thread lets others run until none is inside of a call with a number that it gives up.
/// A signal handler may have interrupted one that is.
const MAX_YIELDS: u32 = 10_000;

/// One is the program's from now on, and is never the library's again: sockets that had it may still name it. Whether
/// no thread uses it any more.
pub fn forget(fd: RawFd) -> bool {
    NEXT.fetch_max(fd + 1, SeqCst);
    if OURS.remove(fd) {
        COUNT.fetch_sub(1, Relaxed);
        for _ in 0..MAX_YIELDS {
            if INSIDE.load(SeqCst) == 0 {
                return true;
            }
            std::thread::yield_now();
        }
    }
    false
}

/// Returns the library's first descriptor from a number on.
pub fn next_from(fd: u32) -> Option<u32> {
    (fd..FDS as u32).find(|fd| is_ours(*fd as c_int))
}
