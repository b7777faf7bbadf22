//! Completion channels: an eventfd that producers in other processes write to.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_verbs::{CompChannel, Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::cq::CqCore;
use crate::fork::{Born, UnforkedFd};

/// An event descriptor: ours, or a peer's that we may write.
pub(crate) struct Waker(UnforkedFd);

impl Waker {
    pub(crate) fn create() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Self(UnforkedFd::new(fd)))
            .map_err(|e| Error::os("eventfd", "create an event descriptor (check RLIMIT_NOFILE)", e))
    }

    pub(crate) fn foreign(fd: OwnedFd) -> Self {
        Self(UnforkedFd::new(fd))
    }

    /// Makes the descriptor readable. A full counter is readable already.
    pub(crate) fn wake(&self) {
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) struct Channel {
    waker: Arc<Waker>,
    queues: Arc<Mutex<Vec<Weak<CqCore>>>>,
    born: Born,
}

impl Channel {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { waker: Arc::new(Waker::create()?), queues: Arc::default(), born: Born::here() })
    }

    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    pub(crate) fn attach(&self, queue: &Arc<CqCore>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|q| q.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }
}

impl CompChannel for Channel {
    fn fd(&self) -> RawFd {
        self.waker.fd().as_raw_fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        self.born.require_here("get_cq_event", "the completion channel")?;
        self.waker.clear();
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fired = queues.iter().filter_map(Weak::upgrade).filter(|queue| queue.has_fired());
        let Some(first) = fired.next() else { return Ok(None) };
        if fired.next().is_some() {
            self.waker.wake();
        }
        first.acknowledge();
        Ok(Some(first.id()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
