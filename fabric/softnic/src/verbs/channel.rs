//! Completion channels: an eventfd that producers in other processes write to.

use std::any::Any;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use farcall_shm::Mutex;
use farcall_shm::fork::Generation;
use farcall_verbs::{CompChannel, Result};

use crate::process::Waker;
use crate::shm_transport::cq::CqCore;

pub(crate) struct Channel {
    pub(crate) waker: Arc<Waker>,
    queues: Arc<Mutex<Vec<Weak<CqCore>>>>,
    fork_generation: Generation,
}

impl Channel {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            waker: Arc::new(Waker::create()?),
            queues: Arc::default(),
            fork_generation: Generation::current(),
        })
    }

    pub(crate) fn attach(&self, queue: &Arc<CqCore>) {
        let mut queues = self.queues.lock();
        // Pruned when the vector is full, so the list is at most twice as long as the number of existing queues.
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(queue));
    }
}

impl CompChannel for Channel {
    fn fd(&self) -> RawFd {
        self.waker.fd().as_raw_fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        self.fork_generation.require_current("get_cq_event", "the completion channel")?;
        self.waker.clear();
        let queues = self.queues.lock();
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
