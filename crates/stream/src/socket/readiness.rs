//! What tells the owner of a socket, who waits for many, that there may be something to do.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_verbs::WaitSet;
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// One descriptor for all that an endpoint sleeps on, and for the time.
pub(super) struct Readiness {
    poller: OwnedFd,
    /// For an endpoint that is to be looked at later, whatever happens.
    timer: OwnedFd,
    is_set: bool,
}

impl Readiness {
    /// # Errors
    /// If the system has no descriptor left.
    pub fn of(set: &WaitSet) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let add = |fd| epoll::add(&poller, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        for fd in set.fds() {
            // SAFETY: the endpoint has just named it as one of its open descriptors.
            add(unsafe { BorrowedFd::borrow_raw(*fd) })?;
        }
        add(timer.as_fd())?;
        Ok(Self { poller, timer, is_set: false })
    }

    /// Readable when there may be something to do.
    pub fn fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// Makes it readable after so long, too; or not by time alone.
    pub fn wake_at(&mut self, after: Option<Duration>) {
        if !self.is_set && after.is_none() {
            return;
        }
        self.is_set = after.is_some();
        // Zero would be never.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_micros(1)));
        let it_value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It takes every time; a timer that ran out before is not readable any more.
        let set =
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
        debug_assert!(set.is_ok(), "{set:?}");
    }
}
