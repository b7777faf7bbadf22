//! Event channels: descriptors that are readable while there are events.

use std::os::fd::AsRawFd;

use farcall_layout::rdmacm::{EventChannel, event as kind};
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::{self, Errno};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::token::Token;

#[repr(C)]
pub struct ChannelObject {
    channel: EventChannel,
    pub queue: Token,
}

/// # Safety
/// `channel` must have been returned by [`create`] and must not be destroyed.
pub unsafe fn object<'a>(channel: *mut EventChannel) -> &'a ChannelObject {
    // SAFETY: contract of this function: `channel` was returned by `create` and is live. The C structure is the first
    // field of its `ChannelObject` (`repr(C)`), which is never modified.
    unsafe { &*channel.cast::<ChannelObject>() }
}

/// Creates a channel.
pub fn create() -> Result<*mut EventChannel, Errno> {
    // Blocking, as programs expect; a program may change that. The library reads it only while its count is positive.
    let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE);
    let count = count.map_err(errno::system("no descriptor for an event channel"))?;
    let channel = EventChannel { fd: count.as_raw_fd() };
    let queue = connection_manager()?.add_queue(count);
    Ok(Box::into_raw(Box::new(ChannelObject { channel, queue })).cast())
}

/// # Safety
/// `channel` must have been returned by [`create`], and must not be used after this call.
pub unsafe fn destroy(channel: *mut EventChannel) {
    // SAFETY: contract of this function: `create` made `channel` with `Box::into_raw`, and it is not used any more.
    let channel = unsafe { Box::from_raw(channel.cast::<ChannelObject>()) };
    if let Ok(mut manager) = connection_manager() {
        manager.remove_queue(channel.queue);
    }
}

impl ChannelObject {
    /// Waits until there is an event. Returns `EAGAIN` if there is none and the program made the descriptor
    /// non-blocking.
    pub fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is owned by the channel, which is borrowed for the duration of the call.
        unsafe { farcall_trace::wait_readable(self.channel.fd) }
    }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_create_event_channel`.
        fn rdma_create_event_channel() -> *mut EventChannel {
            create().unwrap_or_else(errno::null)
        }

        /// `man rdma_destroy_event_channel`.
        fn rdma_destroy_event_channel(channel: *mut EventChannel) {
            // SAFETY: contract of `rdma_destroy_event_channel` (man page): the channel is live and not used after this
            // call.
            unsafe { destroy(channel) }
        }

        /// `man rdma_event_str`.
        fn rdma_event_str(event: u32) -> *const std::ffi::c_char {
            kind::NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
        }
    }
}
