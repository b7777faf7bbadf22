//! Sleeping.
//!
//! The only implementation of the rule against lost wake-ups: progress until idle, arm, progress once more, sleep. The
//! last progress call finds events that occurred before arming; events after arming wake the thread.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use farcall_verbs::{Endpoint, Nanos, Progress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Maximum number of descriptors that [`sleep_on`] waits for without allocating: a server thread has four.
const FEW: usize = 8;

/// Arms an idle endpoint and calls `progress` once more. [`Progress::Idle`] permits the thread to sleep on the wait
/// set. [`Progress::Again`] does not: there is work, or the endpoint cannot be armed and must be polled.
pub fn arm_then_poll<E: Endpoint + ?Sized>(endpoint: &mut E, now: Nanos) -> Progress {
    match endpoint.arm() {
        Ok(()) => endpoint.progress(now),
        Err(_) => Progress::Again,
    }
}

/// Sleeps until a descriptor is readable or has failed, or until the timeout. A signal ends the sleep early.
///
/// # Errors
/// If the system call fails.
///
/// # Panics
/// If a descriptor is -1.
pub fn sleep_on(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout =
        timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    // SAFETY: endpoints keep the descriptors of their wait sets open while they are driven. For a closed descriptor
    // poll(2) merely returns at once.
    let entry = |fd: RawFd| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN);
    let result = match fds.len() {
        0 => poll(&mut [], timeout.as_ref()),
        few @ 1..=FEW => {
            let mut entries: [_; FEW] = std::array::from_fn(|at| entry(fds[at.min(few - 1)]));
            poll(&mut entries[..few], timeout.as_ref())
        }
        _ => poll(&mut fds.iter().map(|fd| entry(*fd)).collect::<Vec<_>>(), timeout.as_ref()),
    };
    match result {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{Result, WaitSet};

    /// An endpoint whose only event occurs just before its `arrives_at`-th call, and which is woken only by events
    /// after it was armed.
    struct Once {
        calls: u32,
        arrives_at: u32,
        armed: bool,
        pending: bool,
        woken: bool,
        served: bool,
    }

    impl Once {
        fn call(&mut self) {
            self.calls += 1;
            if self.calls == self.arrives_at {
                self.pending = true;
                self.woken = self.armed;
            }
        }
    }

    impl Endpoint for Once {
        fn progress(&mut self, _now: Nanos) -> Progress {
            self.call();
            if std::mem::take(&mut self.pending) {
                self.served = true;
                return Progress::Again;
            }
            Progress::IDLE
        }

        fn arm(&mut self) -> Result<()> {
            self.call();
            self.armed = true;
            Ok(())
        }

        fn wait_set(&self, _set: &mut WaitSet) {}
    }

    #[test]
    fn no_event_is_slept_through_whenever_it_comes() {
        for arrives_at in 1..6 {
            let mut endpoint =
                Once { calls: 0, arrives_at, armed: false, pending: false, woken: false, served: false };
            for _ in 0..4 {
                if endpoint.progress(Nanos(0)) == Progress::IDLE
                    && arm_then_poll(&mut endpoint, Nanos(0)) == Progress::IDLE
                {
                    let is_lost = endpoint.pending && !endpoint.woken;
                    assert!(!is_lost, "slept through event {arrives_at}");
                }
            }
            assert!(endpoint.served || endpoint.calls < arrives_at);
        }
    }
}
