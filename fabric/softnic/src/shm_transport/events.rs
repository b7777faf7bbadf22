//! Asynchronous events of an opened device: state changes of its objects, in order, and a file descriptor to wait on.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

use farcall_shm::Mutex;
use farcall_verbs::AsyncEvent;

use crate::process::Waker;

/// Maximum number of queued events. Later events are lost.
const EVENTS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Events {
    queue: Mutex<VecDeque<AsyncEvent>>,
    /// Set when a file descriptor is first requested.
    waker: OnceLock<Waker>,
}

impl Events {
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.raise_if(event, || true);
    }

    /// Applies a change and raises `event` if it had an effect, atomically: an observer of one of them also finds the
    /// other. Returns the result of `change`.
    pub(crate) fn raise_if(&self, event: AsyncEvent, change: impl FnOnce() -> bool) -> bool {
        let mut queue = self.queue.lock();
        let has_changed = change();
        if has_changed && queue.len() < EVENTS_MAX {
            queue.push_back(event);
            self.waker.get().into_iter().for_each(Waker::wake);
        }
        has_changed
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = self.queue.lock();
        let event = queue.pop_front();
        if queue.is_empty() {
            self.waker.get().into_iter().for_each(Waker::clear);
        }
        event
    }

    /// Returns a file descriptor that is readable while events are queued; `None` if the process has no free
    /// descriptor.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        let queue = self.queue.lock();
        if self.waker.get().is_none() {
            let waker = Waker::create().ok()?;
            if !queue.is_empty() {
                waker.wake();
            }
            let _ = self.waker.set(waker);
        }
        self.waker.get().map(|waker| waker.fd().as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::AsyncEventKind;

    #[test]
    fn delivers_events_in_order_and_bounds_their_queue() {
        let events = Events::default();
        assert_eq!(events.take(), None);
        for element in 0..2 * EVENTS_MAX as u32 {
            events.raise(AsyncEvent { kind: AsyncEventKind::CommEst, element });
        }
        let taken: Vec<u32> = std::iter::from_fn(|| events.take()).map(|event| event.element).collect();
        assert_eq!(taken, (0..EVENTS_MAX as u32).collect::<Vec<_>>());
    }

    #[test]
    fn signals_earlier_events_on_a_descriptor_created_late() {
        let events = Events::default();
        events.raise(AsyncEvent { kind: AsyncEventKind::CommEst, element: 1 });
        let is_readable = |fd| {
            let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` reads and writes one entry, and `polled` is a local variable that outlives the call.
            unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
        };
        let fd = events.fd().unwrap();
        assert!(is_readable(fd) && events.fd() == Some(fd));
        assert!(events.take().is_some() && !is_readable(fd));
        events.raise(AsyncEvent { kind: AsyncEventKind::CommEst, element: 2 });
        assert!(is_readable(fd));
    }
}
