//! Waits of calls that block.

use std::ffi::c_int;
use std::time::Duration;

use farcall_stats::PathReason;
use libc::pollfd;

use crate::poll::Caller;
use crate::signals::{self, BlockedSignals, Handlers};
use crate::sock::{Link, Sock};
use crate::{clock, errno, libc_next, poll};

/// Returns whether a call on the connection does not wait.
pub(super) fn is_nonblocking(fd: c_int, sock: &Sock, flags: c_int) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return true;
    }
    if let Some(is_nonblocking) = sock.known_nonblocking() {
        return is_nonblocking;
    }
    // SAFETY: no memory is involved.
    let status = unsafe { libc_next::fcntl(fd, libc::F_GETFL, 0) };
    let is_set = status >= 0 && status & libc::O_NONBLOCK != 0;
    sock.set_known_nonblocking(Some(is_set));
    is_set
}

/// Returns SO_RCVTIMEO or SO_SNDTIMEO; `None` waits without limit.
fn timeout(fd: c_int, option: c_int) -> Option<Duration> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, a timeval.
    let asked =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len) };
    let timeout = Duration::from_secs(value.tv_sec as u64) + Duration::from_micros(value.tv_usec as u64);
    (asked == 0 && !timeout.is_zero()).then_some(timeout)
}

/// Time without a byte received by the peer after which a sender that waits for space continues by TCP.
const STALL_NS: u64 = 100_000_000;

/// Interval between polls for bytes that a thread peeks at (MSG_PEEK with MSG_WAITALL).
const PEEK_PERIOD_NS: u64 = 10_000_000;

/// A wait of one call.
pub(super) struct Wait {
    fd: c_int,
    events: i16,
    /// `None`: no limit.
    until_ns: Option<u64>,
    can_time_out: bool,
}

impl Wait {
    pub(super) fn new(fd: c_int, events: i16, option: c_int) -> Self {
        let timeout = timeout(fd, option);
        let until_ns = timeout.map(|timeout| clock::now_ns() + timeout.as_nanos() as u64);
        Self { fd, events, until_ns, can_time_out: timeout.is_some() }
    }

    /// Waits. Returns the error number with which the call ends, if it ends.
    pub(super) fn wait(&self) -> Result<(), c_int> {
        while !self.wait_until(self.until_ns)? {}
        Ok(())
    }

    /// Waits for `count` bytes, or an end, for [`PEEK_PERIOD_NS`] at most: some of the bytes may arrive by TCP. Returns
    /// whether they are available.
    pub(super) fn wait_for_bytes(&self, count: usize) -> Result<bool, c_int> {
        let until_ns = clock::now_ns() + PEEK_PERIOD_NS;
        let until_ns = self.until_ns.map_or(until_ns, |until| until.min(until_ns));
        self.wait_with(Some(until_ns), count as u64)
    }

    /// Waits until a time at most. Returns whether the awaited bytes or space are available.
    fn wait_until(&self, until_ns: Option<u64>) -> Result<bool, c_int> {
        self.wait_with(until_ns, 0)
    }

    /// Like [`Wait::wait_until`], but fewer than `enough_bytes` bytes do not count.
    fn wait_with(&self, until_ns: Option<u64>, enough_bytes: u64) -> Result<bool, c_int> {
        let handlers = signals::handlers();
        // A call with a timeout ends with EINTR, whichever handler runs.
        let blocked =
            (handlers == Handlers::Differ && !self.can_time_out).then(BlockedSignals::new).flatten();
        let signal_fd = blocked.as_ref().map_or(-1, BlockedSignals::fd);
        let mut fds = [
            pollfd { fd: self.fd, events: self.events, revents: 0 },
            pollfd { fd: signal_fd, events: libc::POLLIN, revents: 0 },
        ];
        let count = if blocked.is_some() { 2 } else { 1 };
        let found = poll::poll_for(
            &mut fds[..count],
            until_ns,
            std::ptr::null(),
            Caller { enough_bytes, references: 1 },
        );
        if blocked.is_some_and(|blocked| fds[1].revents != 0 && blocked.will_be_interrupted()) {
            return Err(libc::EINTR);
        }
        match found {
            0 if self.until_ns.is_some_and(|until| clock::now_ns() >= until) => Err(libc::EAGAIN),
            0 => Ok(false),
            -1 if errno::get() == libc::EINTR && !self.can_time_out && handlers == Handlers::Restart => {
                Ok(false)
            }
            -1 => Err(errno::get()),
            _ => Ok(fds[0].revents != 0),
        }
    }

    /// Waits for space in a ring. If the peer receives nothing for [`STALL_NS`], all later bytes use TCP: the kernel
    /// holds more than the ring, and two ends that both send before they receive rely on that.
    pub(super) fn wait_for_space(&self, sock: &Sock, link: &Link) -> Result<(), c_int> {
        let received_bytes = || link.outgoing.sent_bytes() - link.outgoing.snapshot().unread_bytes;
        let before_bytes = received_bytes();
        let until_ns = clock::now_ns() + STALL_NS;
        while !self.wait_until(Some(self.until_ns.map_or(until_ns, |until| until.min(until_ns))))? {
            if clock::now_ns() >= until_ns {
                if received_bytes() == before_bytes {
                    sock.demote(PathReason::NoResources);
                }
                break;
            }
        }
        Ok(())
    }
}
