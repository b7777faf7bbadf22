//! Completion channels.

use std::any::Any;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use farcall_verbs::{CompChannel, Error, Result};

use crate::fault;
use crate::object::Object;
use crate::open_device::{OpenDevice, set_non_blocking};
use farcall_layout as abi;

/// The channel as shared by the queues attached to it.
pub(crate) struct ChannelCore {
    raw: Object<abi::CompChannel>,
    open: Arc<OpenDevice>,
}

impl ChannelCore {
    pub(crate) fn as_ptr(&self) -> *mut abi::CompChannel {
        self.raw.as_ptr()
    }

    fn fd(&self) -> RawFd {
        // SAFETY: `self.raw` keeps the channel allocated.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

pub(crate) struct Channel(pub(crate) Arc<ChannelCore>);

impl Channel {
    pub(crate) fn new(open: &Arc<OpenDevice>) -> Result<Self> {
        // SAFETY: `open` keeps the device open.
        let raw = unsafe {
            let made = (open.library.create_comp_channel)(open.as_ptr());
            Object::new(made, "completion channel", open.library.destroy_comp_channel, |source| {
                Error::os("create_comp_channel", "an event descriptor (check RLIMIT_NOFILE)", source)
            })?
        };
        let core = ChannelCore { raw, open: Arc::clone(open) };
        set_non_blocking(core.fd())?;
        Ok(Self(Arc::new(core)))
    }
}

impl CompChannel for Channel {
    fn fd(&self) -> RawFd {
        self.0.fd()
    }

    fn poll_cq_event(&self) -> Result<Option<u32>> {
        let library = self.0.open.library;
        let (mut cq, mut id) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the function sets both variables or fails; the channel is alive, and its descriptor does not block.
        if unsafe { (library.get_cq_event)(self.0.as_ptr(), &raw mut cq, &raw mut id) } != 0 {
            let error = fault::last();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::os("poll_cq_event", "the completion channel's descriptor", error)),
            };
        }
        // SAFETY: the library does not free the queue before its events are acknowledged.
        unsafe { (library.ack_cq_events)(cq, 1) };
        // `Cq::new` passed the queue's number as its context.
        Ok(Some(id as usize as u32))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
