//! Event channels: a descriptor that is readable while there are events.

use std::os::fd::{AsRawFd, BorrowedFd};

use farcall_ibv::abi::cm::EventChannel;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno as OsError;

use crate::errno::{self, Errno};
use crate::service::world;
use crate::symbols::export;
use crate::traced;
use crate::world::Token;

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
    let count =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).map_err(|error| error.raw_os_error())?;
    let channel = EventChannel { fd: count.as_raw_fd() };
    let queue = world()?.add_queue(count);
    Ok(Box::into_raw(Box::new(ChannelObject { channel, queue })).cast())
}

/// # Safety
/// `channel` must come from [`create`]; nobody uses it any more.
pub unsafe fn destroy(channel: *mut EventChannel) {
    // SAFETY: the caller's promise.
    let channel = unsafe { Box::from_raw(channel.cast::<ChannelObject>()) };
    if let Ok(mut world) = world() {
        world.remove_queue(channel.queue);
    }
}

impl ChannelObject {
    /// Waits until there is an event; `EAGAIN` if there is none and the program made the descriptor non-blocking.
    pub fn wait(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is the channel's, which the caller uses.
        let fd = unsafe { BorrowedFd::borrow_raw(self.channel.fd) };
        let is_ready =
            |timeout: Option<&Timespec>| match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout) {
                Ok(ready) => Ok(ready > 0),
                Err(OsError::INTR) => Err(libc::EINTR),
                Err(error) => Err(error.raw_os_error()),
            };
        if is_ready(Some(&Timespec::default()))? {
            return Ok(());
        }
        if fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
            return Err(libc::EAGAIN);
        }
        if traced::is_on() {
            farcall_trace::waits("event", |line| {
                line.key("fd");
                line.number(self.channel.fd);
            });
        }
        is_ready(None).map(drop)
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
            const NAMES: [&std::ffi::CStr; 16] = [
                c"RDMA_CM_EVENT_ADDR_RESOLVED",
                c"RDMA_CM_EVENT_ADDR_ERROR",
                c"RDMA_CM_EVENT_ROUTE_RESOLVED",
                c"RDMA_CM_EVENT_ROUTE_ERROR",
                c"RDMA_CM_EVENT_CONNECT_REQUEST",
                c"RDMA_CM_EVENT_CONNECT_RESPONSE",
                c"RDMA_CM_EVENT_CONNECT_ERROR",
                c"RDMA_CM_EVENT_UNREACHABLE",
                c"RDMA_CM_EVENT_REJECTED",
                c"RDMA_CM_EVENT_ESTABLISHED",
                c"RDMA_CM_EVENT_DISCONNECTED",
                c"RDMA_CM_EVENT_DEVICE_REMOVAL",
                c"RDMA_CM_EVENT_MULTICAST_JOIN",
                c"RDMA_CM_EVENT_MULTICAST_ERROR",
                c"RDMA_CM_EVENT_ADDR_CHANGE",
                c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
            ];
            NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
        }
    }
}

/// What a call that leads to an event returns: at once, or when the event is there if the end is synchronous.
///
/// # Safety
/// `id` must be the program's.
pub unsafe fn complete(id: *mut farcall_ibv::abi::cm::CmId) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    if !unsafe { crate::id::object(id) }.own().is_sync {
        return Ok(());
    }
    // SAFETY: as above; a synchronous end's last event is ours to acknowledge.
    unsafe {
        let last = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !last.is_null() {
            crate::event::acknowledge(last);
        }
        let event = crate::event::next((*id).channel)?;
        (*id).event = event;
        crate::event::outcome(event)
    }
}
