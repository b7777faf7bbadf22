//! An opened device, as everything that is made of it holds it.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use farcall_layout::{self as abi, Functions};
use farcall_verbs::{Error, Result};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::object::Object;

/// What every object of the device keeps alive.
pub(crate) struct OpenDevice {
    pub(crate) library: &'static Functions,
    raw: Object<abi::Context>,
    pub(crate) name: String,
    next_id: AtomicU32,
}

impl OpenDevice {
    pub(crate) fn new(library: &'static Functions, raw: Object<abi::Context>, name: String) -> Self {
        Self { library, raw, name, next_id: AtomicU32::new(1) }
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    /// Its functions.
    pub(crate) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context lives as long as `self`, and its table does not change after opening.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// Whether it is an iWARP device, which only the connection manager can connect.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: the context keeps its device alive.
        unsafe { (*(*self.raw.as_ptr()).device).transport_type == abi::TRANSPORT_IWARP }
    }

    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: the context lives as long as `self`.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    /// A number for a queue of this device.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Makes a descriptor of the library's non-blocking, as the traits promise.
pub(crate) fn set_non_blocking(fd: RawFd) -> Result<()> {
    // SAFETY: the caller owns the object whose descriptor this is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| Error::os("fcntl", "make an event descriptor non-blocking", errno))
}
