//! A descriptor that reports possible work of one socket to an application that waits for several.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use farcall_verbs::WaitSet;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// An epoll descriptor that combines all descriptors an endpoint sleeps on, which may change, and a timer.
pub(super) struct Readiness {
    poller: OwnedFd,
    /// Expires when the endpoint must be polled again regardless of events.
    timer: OwnedFd,
    is_set: bool,
    followed: Vec<RawFd>,
}

impl Readiness {
    /// # Errors
    /// Returns an error if no descriptor can be created.
    pub fn new() -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&poller, timer.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { poller, timer, is_set: false, followed: Vec::new() })
    }

    /// Returns the descriptor, which is readable when there may be work.
    pub fn fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }

    /// Replaces the watched descriptors by those of `set`.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot add a descriptor.
    pub fn follow(&mut self, set: &WaitSet) -> io::Result<()> {
        for fd in self.followed.iter().filter(|fd| !set.fds().contains(fd)) {
            // SAFETY: `borrow_raw` requires an open descriptor for the lifetime of the result. `epoll::delete` uses
            // only the number, and the borrow ends with the call. If the endpoint has closed the descriptor, the
            // kernel has removed it from the epoll instance and returns `EBADF` or `ENOENT`, which is handled below.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            match epoll::delete(&self.poller, fd) {
                Ok(()) | Err(Errno::NOENT | Errno::BADF | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for fd in set.fds() {
            // SAFETY: `set` was filled by `Endpoint::wait_set` immediately before, which names open descriptors of the
            // endpoint. The endpoint is not driven before this call returns, so the descriptor stays open.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            match epoll::add(&self.poller, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
                // Descriptor numbers may have been closed and reused, so each is added even if it was watched before.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.followed.clear();
        self.followed.extend_from_slice(set.fds());
        Ok(())
    }

    /// Arms the timer to make the descriptor readable after `after`, or disarms it if that is `None`.
    pub fn wake_at(&mut self, after: Option<Duration>) {
        if !self.is_set && after.is_none() {
            return;
        }
        self.is_set = after.is_some();
        // A zero value would disarm the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_micros(1)));
        let it_value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // `timerfd_settime` accepts every value here. It also clears an earlier expiry.
        let set =
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value });
        debug_assert!(set.is_ok(), "{set:?}");
    }
}
