//! A queue with a descriptor that is readable exactly while the queue is not empty.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use farcall_verbs::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};

pub(crate) struct EventQueue<T> {
    queue: Mutex<VecDeque<T>>,
    readable: OwnedFd,
}

impl<T: PartialEq> EventQueue<T> {
    pub(crate) fn new(operation: &'static str) -> Result<Self> {
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            Error::os(operation, "create an event descriptor (check RLIMIT_NOFILE)", error)
        })?;
        Ok(Self { queue: Mutex::default(), readable })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Appends an item, unless the queue contains it already.
    pub(crate) fn put(&self, item: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.contains(&item) {
            queue.push_back(item);
            let _ = rustix::io::write(&self.readable, &1_u64.to_ne_bytes());
        }
    }

    /// Removes the oldest item. The program may have made the descriptor blocking, so it is read only while it is
    /// readable.
    pub(crate) fn take(&self) -> Option<T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let item = queue.pop_front()?;
        if queue.is_empty() {
            let _ = rustix::io::read(&self.readable, &mut [0_u8; 8]);
        }
        Some(item)
    }
}
