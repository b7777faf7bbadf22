//! Sleeping on descriptors.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Descriptors that are slept on without allocating.
const FEW: usize = 8;

/// Sleeps until a descriptor is readable or has failed, or the time is over. A signal ends it early.
///
/// # Errors
/// If the system cannot wait on them.
///
/// # Panics
/// If a descriptor is -1.
pub fn sleep_on(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout =
        timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    // SAFETY: endpoints keep the descriptors of their wait sets open while they are driven; a closed one makes poll
    // return at once, nothing worse.
    let entry = |fd: RawFd| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN);
    let result = match *fds {
        [] => poll(&mut [], timeout.as_ref()),
        [a] => poll(&mut [entry(a)], timeout.as_ref()),
        [a, b] => poll(&mut [entry(a), entry(b)], timeout.as_ref()),
        [a, b, c] => poll(&mut [entry(a), entry(b), entry(c)], timeout.as_ref()),
        _ => {
            let mut entries = Vec::with_capacity(fds.len().max(FEW));
            entries.extend(fds.iter().map(|fd| entry(*fd)));
            poll(&mut entries, timeout.as_ref())
        }
    };
    match result {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
