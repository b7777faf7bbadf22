//! Descriptors of the library, with numbers that the program is unlikely to need.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use rustix::io;

use crate::fd_set::{FDS, FdSet};

static OWN: FdSet = FdSet::new();
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Lowest number that the library has had.
static LOWEST: AtomicI32 = AtomicI32::new(c_int::MAX);
/// Lowest number that the library may still have: lower ones were released.
static NEXT: AtomicI32 = AtomicI32::new(0);
/// Threads that are inside of [`while_own`].
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Number of descriptors that a program may open between two connections before one of them has the number of one of
/// the library's.
const SLACK: c_int = 32;

/// Returns whether a descriptor belongs to the library.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    OWN.contains(fd)
}

/// Returns whether the library has any descriptors.
pub fn exist() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Moves a descriptor to the upper quarter of all that the process may have; `None` if the library has all of these.
/// When the program opens numbers near them, the library releases them (`descriptors::release_near`).
pub fn adopt(fd: OwnedFd) -> Option<RawFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = limit.min(FDS as u64);
    let moved = (COUNT.load(Relaxed) < limit / 4)
        .then(|| io::fcntl_dupfd_cloexec(&fd, NEXT.load(SeqCst).max((limit / 4 * 3) as c_int)).ok());
    let moved = moved.flatten().map(IntoRawFd::into_raw_fd);
    // By the system call: `close` of the C library is replaced by this library's.
    // SAFETY: its owner passes it to this function.
    unsafe { io::close(fd.into_raw_fd()) };
    let moved = moved?;
    OWN.insert(moved);
    COUNT.fetch_add(1, Relaxed);
    LOWEST.fetch_min(moved, Relaxed);
    Some(moved)
}

/// Returns the lowest descriptor of the library if the program, which has just opened `fd`, may soon need its number.
#[inline]
pub fn lowest_near(fd: c_int) -> Option<RawFd> {
    if fd.saturating_add(SLACK) < LOWEST.load(Relaxed) {
        return None;
    }
    let lowest = next_from(0).map_or(c_int::MAX, |lowest| lowest as c_int);
    LOWEST.store(lowest, Relaxed);
    (fd.saturating_add(SLACK) >= lowest).then_some(lowest)
}

/// Closes a descriptor of the library.
pub fn close(fd: RawFd) {
    if OWN.remove(fd) {
        COUNT.fetch_sub(1, Relaxed);
        // SAFETY: it was the library's, and is not any more.
        unsafe { io::close(fd) };
    }
}

/// Borrows a descriptor of the library for a call.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers have a reference to the socket, which keeps the descriptor open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Runs a call that does not wait while a number belongs to the library; not if it was released.
pub fn while_own(fd: RawFd, call: impl FnOnce()) {
    // Counted first: `abandon` reads the count, or this thread reads that the number was released.
    CALLS.fetch_add(1, SeqCst);
    if OWN.contains(fd) {
        call();
    }
    CALLS.fetch_sub(1, SeqCst);
}

/// Maximum number of yields until no thread is in a call with a number that is released. A signal handler may have
/// interrupted a thread that is in one.
const MAX_YIELDS: u32 = 10_000;

/// Passes a number to the program for good: sockets of the library may still name it. Returns whether no thread uses it
/// any more.
pub fn abandon(fd: RawFd) -> bool {
    NEXT.fetch_max(fd + 1, SeqCst);
    if OWN.remove(fd) {
        COUNT.fetch_sub(1, Relaxed);
        for _ in 0..MAX_YIELDS {
            if CALLS.load(SeqCst) == 0 {
                return true;
            }
            std::thread::yield_now();
        }
    }
    false
}

/// Returns the library's first descriptor from a number on.
pub fn next_from(fd: u32) -> Option<u32> {
    (fd..FDS as u32).find(|fd| is_own(*fd as c_int))
}
