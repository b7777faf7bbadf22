//! Asynchronous events: those of the provider and those of injected faults.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use farcall_verbs::{AsyncEvent, Context, Error, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::event_queue::EventQueue;

pub(crate) struct Events {
    raised: EventQueue<AsyncEvent>,
    /// Readable when the queue of fault events or the provider's descriptor is.
    either: OwnedFd,
}

const OP: &str = "open device";

impl Events {
    pub(crate) fn new(inner: &dyn Context) -> Result<Self> {
        let fail = |error| Error::os(OP, "create an epoll descriptor (check RLIMIT_NOFILE)", error);
        let raised = EventQueue::new(OP)?;
        let either = epoll::create(CreateFlags::CLOEXEC).map_err(fail)?;
        let add =
            |fd: BorrowedFd<'_>| epoll::add(&either, fd, EventData::new_u64(0), EventFlags::IN).map_err(fail);
        add(raised.fd())?;
        if let Some(fd) = inner.async_event_fd() {
            // SAFETY: `inner` owns the descriptor and is borrowed during the call.
            add(unsafe { BorrowedFd::borrow_raw(fd) })?;
        }
        Ok(Self { raised, either })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.either.as_raw_fd()
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.raised.put(event);
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        self.raised.take()
    }
}
