//! Completion channels. The provider's events report when completions arrived; the events of these channels report when
//! programs may see them.

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farcall_verbs::{CompChannel, Result};

use crate::cq::Core;
use crate::due_events::DueEvents;
use crate::event_queue::EventQueue;
use crate::timer::Timer;
use crate::watcher::{Watched, Watcher};

/// State of a channel that the watcher thread services.
struct Source {
    inner: Arc<dyn CompChannel>,
    due: Arc<DueEvents>,
    queues: Mutex<Vec<Weak<Core>>>,
}

impl Source {
    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: `inner` owns the descriptor and is borrowed for the lifetime of the result.
        [unsafe { BorrowedFd::borrow_raw(self.inner.fd()) }, self.due.timer.fd()]
    }
}

impl Watched for Source {
    fn service(&self) {
        // Copy the list first: the queues' own locks must not be acquired under the lock of the list.
        let queues: Vec<Arc<Core>> = {
            let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.iter().filter_map(Weak::upgrade).collect()
        };
        while let Ok(Some(id)) = self.inner.poll_cq_event() {
            if let Some(queue) = queues.iter().find(|queue| queue.id() == id) {
                queue.on_provider_event();
            }
        }
        // Clear before servicing the queues: a queue with a completion that becomes ready later sets the timer again.
        self.due.timer.clear();
        for queue in &queues {
            queue.service();
        }
    }
}

pub(crate) struct FaultyChannel {
    source: Arc<Source>,
    watcher: Arc<Watcher>,
    key: u64,
}

impl FaultyChannel {
    pub(crate) fn new(inner: Arc<dyn CompChannel>) -> Result<Self> {
        static KEYS: AtomicU64 = AtomicU64::new(0);
        let events = EventQueue::new("create_comp_channel")?;
        let due = Arc::new(DueEvents { timer: Timer::new()?, events });
        let source = Arc::new(Source { inner, due, queues: Mutex::default() });
        let (watcher, key) = (Watcher::get()?, KEYS.fetch_add(1, Ordering::Relaxed));
        let weak: Weak<Source> = Arc::downgrade(&source);
        watcher.watch(key, weak, source.fds())?;
        Ok(Self { source, watcher, key })
    }

    pub(crate) fn inner(&self) -> &dyn CompChannel {
        &*self.source.inner
    }

    pub(crate) fn due(&self) -> &Arc<DueEvents> {
        &self.source.due
    }

    pub(crate) fn attach(&self, queue: &Arc<Core>) {
        let mut queues = self.source.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }
}

impl CompChannel for FaultyChannel {
    fn fd(&self) -> RawFd {
        self.source.due.events.fd().as_raw_fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        Ok(self.source.due.events.take())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for FaultyChannel {
    fn drop(&mut self) {
        self.watcher.forget(self.key, self.source.fds());
    }
}
