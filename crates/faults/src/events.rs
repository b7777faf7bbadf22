//! Asynchronous events: the provider's, and those of faults.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use farcall_verbs::{AsyncEvent, Context, Error, Result};
use rustix::event::{EventfdFlags, eventfd};

use crate::channel::either;

pub(crate) struct Events {
    queue: Mutex<VecDeque<AsyncEvent>>,
    raised: OwnedFd,
    /// The provider's descriptor and ours.
    fd: OwnedFd,
}

impl Events {
    pub(crate) fn new(inner: &dyn Context) -> Result<Self> {
        let raised = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
            Error::os("open device", "create an event descriptor (check RLIMIT_NOFILE)", error)
        })?;
        let fd = match inner.async_event_fd() {
            // SAFETY: the context lives, and so does its descriptor.
            Some(fd) => either("open device", &[unsafe { BorrowedFd::borrow_raw(fd) }, raised.as_fd()])?,
            None => either("open device", &[raised.as_fd()])?,
        };
        Ok(Self { queue: Mutex::default(), raised, fd })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        let _ = rustix::io::write(&self.raised, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let event = queue.pop_front();
        if queue.is_empty() {
            let _ = rustix::io::read(&self.raised, &mut [0_u8; 8]);
        }
        event
    }
}
