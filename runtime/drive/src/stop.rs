//! Request to end a loop.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A request to stop: set once, visible to every clone, and wakes sleeping threads.
#[derive(Clone, Debug)]
pub struct Stop {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    requested: AtomicBool,
    /// Readable after the request; never read, so that it stays readable.
    event: OwnedFd,
}

impl Stop {
    /// Creates a stop that is not requested.
    ///
    /// # Errors
    /// If a descriptor cannot be created.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inner: Arc::new(Inner { requested: AtomicBool::new(false), event }) })
    }

    /// Requests that every loop with a clone ends.
    pub fn request(&self) {
        self.inner.requested.store(true, Ordering::Release);
        // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.inner.event, &1_u64.to_ne_bytes());
    }

    /// Returns whether the stop was requested.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.inner.requested.load(Ordering::Acquire)
    }

    /// Returns the descriptor to include in a sleep.
    pub fn fd(&self) -> RawFd {
        self.inner.event.as_raw_fd()
    }
}
