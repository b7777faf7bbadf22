//! One descriptor to wait on, for an endpoint whose descriptors come and go.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_verbs::WaitSet;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Readable when one of the endpoint's descriptors is, or its time has come.
pub(super) struct Watch {
    poller: OwnedFd,
    timer: OwnedFd,
    watched: Vec<RawFd>,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&poller, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { poller, timer, watched: Vec::new() })
    }

    pub fn fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// From now on watches these, and becomes readable after `left`.
    pub fn follow(&mut self, set: &WaitSet, left: Option<Duration>) -> io::Result<()> {
        for fd in self.watched.iter().filter(|fd| !set.fds().contains(fd)) {
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
                // A number may have been closed and given again, so it is added whether it was watched or not.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.watched.clear();
        self.watched.extend_from_slice(set.fds());
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = left.map_or(never, |left| {
            // Zero would mean never.
            let left = left.max(Duration::from_nanos(1));
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: never, it_value },
        )?;
        Ok(())
    }
}
