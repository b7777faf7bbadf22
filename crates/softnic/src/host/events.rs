//! Asynchronous events of an opened device: what happened to its own objects, in order, and a descriptor to wait on.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use farcall_shm::Mutex;
use farcall_verbs::{AsyncEvent, Result};

use crate::life::Waker;

/// Events that are kept for who does not take them; later ones are lost.
const KEPT: usize = 1024;

pub(crate) struct Events {
    queue: Mutex<VecDeque<AsyncEvent>>,
    waker: Waker,
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { queue: Mutex::default(), waker: Waker::create()? })
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.raise_if(event, || true);
    }

    /// Makes the change that an event tells of, and raises it if there was something to change: who sees one of them
    /// finds the other. Returns what `change` did.
    pub(crate) fn raise_if(&self, event: AsyncEvent, change: impl FnOnce() -> bool) -> bool {
        let mut queue = self.queue.lock();
        let has_changed = change();
        if has_changed && queue.len() < KEPT {
            queue.push_back(event);
            self.waker.wake();
        }
        has_changed
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = self.queue.lock();
        let event = queue.pop_front();
        if queue.is_empty() {
            self.waker.clear();
        }
        event
    }

    /// Readable while there are events.
    pub(crate) fn fd(&self) -> RawFd {
        self.waker.fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::AsyncEventKind;

    #[test]
    fn events_come_in_order_and_those_that_nobody_takes_are_bounded() {
        let events = Events::new().unwrap();
        assert_eq!(events.take(), None);
        for element in 0..2 * KEPT as u32 {
            events.raise(AsyncEvent { kind: AsyncEventKind::CommEst, element });
        }
        let taken: Vec<u32> = std::iter::from_fn(|| events.take()).map(|event| event.element).collect();
        assert_eq!(taken, (0..KEPT as u32).collect::<Vec<_>>());
    }
}
