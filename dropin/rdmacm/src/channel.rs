//! Event channels: a descriptor that is readable while there are events.

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
/// `channel` must come from [`create`] and not be destroyed.
pub unsafe fn object<'a>(channel: *mut EventChannel) -> &'a ChannelObject {
    // SAFETY: the C structure begins its object, which nothing changes.
    unsafe { &*channel.cast::<ChannelObject>() }
}

/// Makes a channel.
pub fn create() -> Result<*mut EventChannel, Errno> {
    // In blocking mode, as programs find it: they change that if they like. It is read only while it counts.
    let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE);
    let count = count.map_err(errno::system("no descriptor for an event channel"))?;
    let channel = EventChannel { fd: count.as_raw_fd() };
    let queue = connection_manager()?.add_queue(count);
    Ok(Box::into_raw(Box::new(ChannelObject { channel, queue })).cast())
}

/// # Safety
/// `channel` must come from [`create`]; nothing uses it any more.
pub unsafe fn destroy(channel: *mut EventChannel) {
    // SAFETY: the caller's promise.
    let channel = unsafe { Box::from_raw(channel.cast::<ChannelObject>()) };
    if let Ok(mut manager) = connection_manager() {
        manager.remove_queue(channel.queue);
    }
}

impl ChannelObject {
    /// Waits until there is an event; `EAGAIN` if there is none and the program made the descriptor non-blocking.
    pub fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is the channel's, which the caller uses.
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
            // SAFETY: the caller's channel.
            unsafe { destroy(channel) }
        }

        /// `man rdma_event_str`.
        fn rdma_event_str(event: u32) -> *const std::ffi::c_char {
            kind::NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
        }
    }
}

/// Acknowledges the last event of a synchronous end, and waits for the next.
///
/// # Safety
/// `id` must be the program's, and synchronous.
pub unsafe fn next_event(id: *mut CmId) -> Result<*mut CmEvent, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        acknowledge_last(id);
        event::next((*id).channel)
    }
}

/// Acknowledges the event that a synchronous end shows, if there is one.
///
/// # Safety
/// `id` must be the program's.
pub unsafe fn acknowledge_last(id: *mut CmId) {
    // SAFETY: the caller's promise; a synchronous end's last event is ours to acknowledge.
    unsafe {
        let last = ptr::replace(&raw mut (*id).event, ptr::null_mut());
        if !last.is_null() {
            event::acknowledge(last);
        }
    }
}

/// What a call that leads to an event returns: at once, or when the event is there if the end is synchronous.
///
/// # Safety
/// `id` must be the program's.
pub unsafe fn complete(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if !id::object(id).own().is_sync {
            return Ok(());
        }
        let event = next_event(id)?;
        (*id).event = event;
        event::outcome(event)
    }
}
