//! Timer for due events: a descriptor that becomes readable at a given time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use farcall_verbs::{Error, Result};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Returns the machine's monotonic clock in nanoseconds, on which the timers are based.
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

    /// Makes the descriptor readable at `ns` at the latest.
    pub(crate) fn at_latest(&self, ns: u64) {
        let mut due_ns = self.due_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if due_ns.is_none_or(|due_ns| ns < due_ns) {
            *due_ns = Some(ns);
            // Zero would disarm the timer.
            self.set(ns.max(1));
        }
    }

    /// Makes the descriptor unreadable until a new time is set.
    pub(crate) fn clear(&self) {
        let mut due_ns = self.due_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if due_ns.take().is_some() {
            // Zero also clears an expiration that has happened.
            self.set(0);
        }
    }

    fn set(&self, ns: u64) {
        let at = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: at };
        // This cannot fail: the descriptor is owned and the times are valid.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec);
    }
}
