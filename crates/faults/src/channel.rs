//! Completion channels: the provider's events are when completions came; ours are when programs may see them.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_verbs::{CompChannel, Error, Result};
use rustix::event::epoll;

use crate::cq::Core;
use crate::timer::Timer;

/// A descriptor that is readable when one of others is.
pub(crate) fn either(operation: &'static str, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd> {
    let fail = |error| Error::os(operation, "create an epoll descriptor (check RLIMIT_NOFILE)", error);
    let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
    for fd in fds {
        epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(fail)?;
    }
    Ok(both)
}

pub(crate) struct FaultyChannel {
    pub(crate) inner: Arc<dyn CompChannel>,
    timer: Arc<Timer>,
    /// The provider's descriptor and the timer.
    fd: OwnedFd,
    queues: Mutex<Vec<Weak<Core>>>,
}

impl FaultyChannel {
    pub(crate) fn new(inner: Arc<dyn CompChannel>) -> Result<Self> {
        let timer = Arc::new(Timer::new()?);
        // SAFETY: the channel lives, and so does its descriptor.
        let of_inner = unsafe { BorrowedFd::borrow_raw(inner.fd()) };
        let fd = either("create_comp_channel", &[of_inner, timer.fd()])?;
        Ok(Self { inner, timer, fd, queues: Mutex::default() })
    }

    pub(crate) fn timer(&self) -> &Arc<Timer> {
        &self.timer
    }

    pub(crate) fn attach(&self, queue: &Arc<Core>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }
}

impl CompChannel for FaultyChannel {
    fn fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(id) = self.inner.poll_cq_event()? {
            if let Some(queue) = queues.iter().filter_map(Weak::upgrade).find(|queue| queue.id() == id) {
                queue.completions_came();
            }
        }
        // Before looking: whoever is due from now on sets it again.
        self.timer.clear();
        let mut taken = None;
        for (at, queue) in queues.iter().enumerate() {
            if let Some(queue) = queue.upgrade()
                && queue.take_event(taken.is_none())
            {
                taken = Some((at, queue.id()));
            }
        }
        // The next event is another queue's, if others have any.
        let Some((at, id)) = taken else { return Ok(None) };
        queues.rotate_left(at + 1);
        Ok(Some(id))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
