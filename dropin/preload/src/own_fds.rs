//! Descriptors of the library's own: out of the way of the program's, which does not know of them.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use rustix::io;

use crate::sock::FDS;

static OURS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a descriptor is the library's.
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    OURS.get(fd as usize / 64).is_some_and(|bits| bits.load(Relaxed) & (1 << (fd % 64)) != 0)
}

/// Whether there are any.
pub fn are_there() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Moves a descriptor out of the program's way. `None` if the library has a quarter of all that the process may have:
/// the program may need the others.
pub fn keep(fd: OwnedFd) -> Option<RawFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = limit.min(FDS as u64);
    let kept = (COUNT.load(Relaxed) < limit / 4)
        .then(|| io::fcntl_dupfd_cloexec(&fd, (limit / 4 * 3) as c_int).ok());
    let kept = kept.flatten().map(IntoRawFd::into_raw_fd);
    // By the kernel's call: the C library's `close` is ours.
    // SAFETY: given up by its owner.
    unsafe { io::close(fd.into_raw_fd()) };
    let kept = kept?;
    OURS.get(kept as usize / 64)?.fetch_or(1 << (kept % 64), SeqCst);
    COUNT.fetch_add(1, Relaxed);
    Some(kept)
}

/// Closes one.
pub fn close(fd: RawFd) {
    if let Some(bits) = OURS.get(fd as usize / 64)
        && bits.fetch_and(!(1 << (fd % 64)), SeqCst) & (1 << (fd % 64)) != 0
    {
        COUNT.fetch_sub(1, Relaxed);
        // SAFETY: it was the library's, and is not any more.
        unsafe { io::close(fd) };
    }
}

/// One of ours, for a call.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers have a use of the socket that keeps it open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Rings a doorbell.
pub fn ring(door: RawFd) {
    // It can be full only if it was rung since the beginning of the universe.
    let _ = io::write(borrow(door), &1_u64.to_ne_bytes());
}

/// Makes a doorbell silent.
pub fn silence(door: RawFd) {
    let _ = io::read(borrow(door), &mut [0_u8; 8]);
}

/// One is the program's from now on.
pub fn forget(fd: RawFd) {
    if let Some(bits) = OURS.get(fd as usize / 64)
        && bits.fetch_and(!(1 << (fd % 64)), SeqCst) & (1 << (fd % 64)) != 0
    {
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// The first of the library's from a number on.
pub fn next_from(fd: u32) -> Option<u32> {
    (fd..FDS as u32).find(|fd| is_ours(*fd as c_int))
}
