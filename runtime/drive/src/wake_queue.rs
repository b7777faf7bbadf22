//! Queue to a thread that polls and sometimes sleeps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A queue whose receiver reads only one flag while it is empty, and has a descriptor to sleep on. For rare items and
/// not for messages: both ends lock.
pub struct WakeQueue<T>(Arc<Inner<T>>);

struct Inner<T> {
    queue: Mutex<VecDeque<T>>,
    has_any: AtomicBool,
    event: OwnedFd,
}

impl<T> Clone for WakeQueue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> WakeQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// If a descriptor cannot be created.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = Mutex::new(VecDeque::new());
        Ok(Self(Arc::new(Inner { queue, has_any: AtomicBool::new(false), event })))
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        // The queue is consistent at every instruction, so a panic elsewhere does not corrupt it.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item and wakes the receiver if it sleeps.
    pub fn push(&self, item: T) {
        let mut queue = self.queue();
        queue.push_back(item);
        // Inside the lock, so that a receiver that empties the queue cannot clear the flag of a newer item.
        self.0.has_any.store(true, Ordering::Release);
        drop(queue);
        // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    /// Wakes the receiver without an item, to check other sources of work.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    /// Clears the readiness of a wake-up without an item. Called before a sleep.
    pub fn clear_wake(&self) {
        let queue = self.queue();
        if queue.is_empty() {
            let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
        }
    }

    /// Returns whether there is an item: one load.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.0.has_any.load(Ordering::Acquire)
    }

    /// Removes and returns the oldest item.
    pub fn pop(&self) -> Option<T> {
        if !self.has_any() {
            return None;
        }
        let mut queue = self.queue();
        let item = queue.pop_front();
        if queue.is_empty() {
            self.0.has_any.store(false, Ordering::Release);
            // Read before the next sleep: a later push makes the descriptor readable again.
            let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
        }
        item
    }

    /// Returns the descriptor to sleep on.
    pub fn fd(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_readable_exactly_while_there_is_something() {
        let queue = WakeQueue::new().unwrap();
        let readable = |queue: &WakeQueue<u32>| {
            let mut fds = [rustix::event::PollFd::new(&queue.0.event, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
                == 1
        };
        assert!(!readable(&queue) && queue.pop().is_none());
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue) && queue.has_any());
        assert_eq!(queue.pop(), Some(1));
        assert!(readable(&queue) && queue.has_any());
        assert_eq!(queue.pop(), Some(2));
        assert!(!readable(&queue) && !queue.has_any());
    }
}
