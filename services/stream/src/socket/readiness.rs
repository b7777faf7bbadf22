//! What tells an owner who waits for many things that there may be something to do with one of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_verbs::WaitSet;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// One descriptor for all that an endpoint sleeps on, which may come and go, and for the time.
pub(super) struct Readiness {
    poller: OwnedFd,
    /// For an endpoint that is to be looked at later, whatever happens.
    timer: OwnedFd,
    is_set: bool,
    followed: Vec<RawFd>,
}

impl Readiness {
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&poller, timer.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { poller, timer, is_set: false, followed: Vec::new() })
    }

    /// Readable when there may be something to do.
    pub fn fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// From now on it is readable when one of these is, and by no other.
    ///
    /// # Errors
    /// If the system has no memory left for it.
    pub fn follow(&mut self, set: &WaitSet) -> io::Result<()> {
        for fd in self.followed.iter().filter(|fd| !set.fds().contains(fd)) {
            // SAFETY: only its number is asked for; a closed descriptor is one that the kernel has forgotten.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            match epoll::delete(&self.poller, fd) {
                Ok(()) | Err(Errno::NOENT | Errno::BADF | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for fd in set.fds() {
            // SAFETY: the endpoint has just named it as one of its open descriptors.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            match epoll::add(&self.poller, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
                // A number may have been closed and given again, so it is added whether it was followed or not.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.followed.clear();
        self.followed.extend_from_slice(set.fds());
        Ok(())
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
