//! An opened device, shared by all objects created from it.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use farcall_layout::{self as abi, Functions};
use farcall_verbs::{Error, Result};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::object::Object;

/// State that every object of the device keeps alive.
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

    /// Returns the device's function table.
    pub(crate) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: `self.raw` keeps the context alive, and its table does not change after opening.
        unsafe { &(*self.raw.as_ptr()).ops }
    }

    /// Returns whether it is an iWARP device, which only the RDMA connection manager can connect.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: `self.raw` keeps the context alive, which keeps its device alive.
        unsafe { (*(*self.raw.as_ptr()).device).transport_type == abi::TRANSPORT_IWARP }
    }

    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: `self.raw` keeps the context alive.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    /// Returns a number for a queue of this device.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Makes a descriptor of the library non-blocking, as the traits of `farcall-verbs` require.
pub(crate) fn set_non_blocking(fd: RawFd) -> Result<()> {
    // SAFETY: the caller owns the object of this descriptor, so the descriptor stays open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| Error::os("fcntl", "make an event descriptor non-blocking", errno))
}
