//! Ending a loop from elsewhere.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A request to stop: set once, seen by every clone, wakes who sleeps.
#[derive(Clone, Debug)]
pub struct Stop {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    requested: AtomicBool,
    /// Readable once stopping was requested; never read, so that it stays so.
    event: OwnedFd,
}

impl Stop {
    /// Not requested yet.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inner: Arc::new(Inner { requested: AtomicBool::new(false), event }) })
    }

    /// Asks every loop that holds a clone to end.
    pub fn request(&self) {
        self.inner.requested.store(true, Ordering::Release);
        // The counter can only be full if it is readable already.
        let _ = rustix::io::write(&self.inner.event, &1_u64.to_ne_bytes());
    }

    /// Whether it was requested.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.inner.requested.load(Ordering::Acquire)
    }

    /// The descriptor to sleep on.
    pub fn fd(&self) -> RawFd {
        self.inner.event.as_raw_fd()
    }
}
