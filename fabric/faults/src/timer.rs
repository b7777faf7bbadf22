//! When events are due: a descriptor that becomes readable then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use farcall_verbs::{Error, Result};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Nanoseconds of the machine's monotonic clock, which timers follow.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(crate) struct Timer {
    fd: OwnedFd,
    due_ns: Mutex<Option<u64>>,
}

impl Timer {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|error| {
            Error::os("create_comp_channel", "create a timer (check RLIMIT_NOFILE)", error)
        })?;
        Ok(Self { fd, due_ns: Mutex::new(None) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Readable at that time, if not before.
    pub(crate) fn at_latest(&self, ns: u64) {
        let mut due_ns = self.due_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if due_ns.is_none_or(|due_ns| ns < due_ns) {
            *due_ns = Some(ns);
            // Zero would mean never.
            self.set(ns.max(1));
        }
    }

    /// Not readable, until it is told a time again.
    pub(crate) fn clear(&self) {
        let mut due_ns = self.due_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if due_ns.take().is_some() {
            // Also forgets that it was due.
            self.set(0);
        }
    }

    fn set(&self, ns: u64) {
        let at = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: at };
        // A descriptor of our own and valid times: there is nothing that could fail.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec);
    }
}
