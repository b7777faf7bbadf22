//! Event channels: descriptors that are readable while there are events.

use std::os::fd::AsRawFd;
use std::ptr;

use farcall_layout::rdmacm::{CmEvent, CmId, EventChannel, event as kind};
use rustix::event::{EventfdFlags, eventfd};

use crate::connection_manager::Token;
use crate::errno::{self, Errno};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{event, id};

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

/// Acknowledges the last event of a synchronous endpoint, and waits for the next one.
///
/// # Safety
/// `id` must be a live identifier of the program, and synchronous.
pub unsafe fn next_event(id: *mut CmId) -> Result<*mut CmEvent, Errno> {
    // SAFETY: contract of this function: `id` is live and synchronous, so its channel is one of this library that
    // lives as long as the identifier.
    unsafe {
        acknowledge_last(id);
        event::next((*id).channel)
    }
}

/// Acknowledges the event stored in a synchronous endpoint, if there is one.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn acknowledge_last(id: *mut CmId) {
    // SAFETY: contract of this function: `id` is live. The library, not the program, acknowledges the event stored in
    // a synchronous endpoint, and it is removed before.
    unsafe {
        let last = ptr::replace(&raw mut (*id).event, ptr::null_mut());
        if !last.is_null() {
            event::acknowledge(last);
        }
    }
}

/// Completes a call that causes an event: returns at once, or after the event if the endpoint is synchronous.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn complete(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live. `next_event` is called only if it is synchronous, and returns
    // an event that is not acknowledged.
    unsafe {
        if !id::object(id).lock_state().is_sync {
            return Ok(());
        }
        let event = next_event(id)?;
        (*id).event = event;
        event::outcome(event)
    }
}
