//! Completion channels.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::context;
use crate::cq::{self, CqObject};
use crate::errno;
use crate::symbols::export;
use crate::uses::Uses;
use farcall_ibv::abi::whole::{CompChannel, Context, Cq};

#[repr(C)]
pub struct ChannelObject {
    channel: CompChannel,
    pub provider: Arc<dyn farcall_verbs::CompChannel>,
    pub uses: Uses,
}

/// # Safety
/// `channel` must come from [`ibv_create_comp_channel`].
pub unsafe fn object<'a>(channel: *mut CompChannel) -> &'a ChannelObject {
    // SAFETY: the C structure begins its object.
    unsafe { &*channel.cast::<ChannelObject>() }
}

impl ChannelObject {
    /// Waits for an event unless the program made the descriptor non-blocking.
    fn next(&self) -> Result<u32, c_int> {
        loop {
            wait_readable(self.channel.fd)?;
            match self.provider.poll_cq_event() {
                Ok(Some(id)) => return Ok(id),
                Ok(None) => {}
                Err(error) => return Err(errno::number(&error)),
            }
        }
    }
}

/// Waits until a descriptor is readable; `EAGAIN` if it is not and the program made it non-blocking. Asked before the
/// provider looks: its read would block on a descriptor in the mode that programs find it in.
pub fn wait_readable(fd: c_int) -> Result<(), c_int> {
    // SAFETY: the descriptor is of an object that the caller holds.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let at_once = Timespec::default();
    let readable = |timeout: Option<&Timespec>| match poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Err(libc::EINTR),
        Err(error) => Err(error.raw_os_error()),
    };
    if readable(Some(&at_once))? {
        return Ok(());
    }
    if fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK)) {
        return Err(libc::EAGAIN);
    }
    if farcall_trace::is_on() {
        farcall_trace::waits("event", |line| {
            line.key("fd");
            line.number(fd.as_raw_fd());
        });
    }
    readable(None).map(drop)
}

/// Programs find descriptors in blocking mode and change that if they like.
pub fn make_blocking(fd: c_int) {
    // SAFETY: as in `wait_readable`.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags - OFlags::NONBLOCK));
}

export! {
    "IBVERBS_1.0" {
        /// `man ibv_create_comp_channel`.
        fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
            // SAFETY: the caller's context.
            match unsafe { context::object(context) }.provider.create_comp_channel() {
                Ok(provider) => {
                    make_blocking(provider.fd());
                    let channel = CompChannel { context, fd: provider.fd(), refcnt: 0 };
                    Box::into_raw(Box::new(ChannelObject { channel, provider, uses: Uses::default() })).cast()
                }
                Err(error) => errno::null(errno::number(&error)),
            }
        }

        /// `man ibv_destroy_comp_channel`.
        fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
            // SAFETY: the caller's channel.
            if let Err(number) = unsafe { object(channel) }.uses.check_none() {
                return number;
            }
            // SAFETY: made above, and nothing uses it.
            drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
            0
        }
    }
    "IBVERBS_1.1" {
        /// `man ibv_get_cq_event`.
        fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, cq_context: *mut *mut c_void) -> c_int {
            // SAFETY: the caller's channel.
            let channel = unsafe { object(channel) };
            // SAFETY: contexts outlive their channels.
            let registry = &unsafe { context::object(channel.channel.context) }.registry;
            loop {
                let id = match channel.next() {
                    Ok(id) => id,
                    Err(number) => {
                        errno::set(number);
                        return -1;
                    }
                };
                // The event may be of a queue that was destroyed meanwhile.
                if let Some(found) = cq::find(registry, id) {
                    // SAFETY: the caller's variables; the queue lives, for the event is not acknowledged.
                    unsafe {
                        *cq = found.0.cast::<Cq>();
                        *cq_context = (*found.0.cast::<Cq>()).cq_context;
                    }
                    return 0;
                }
            }
        }

        /// `man ibv_ack_cq_events`.
        fn ibv_ack_cq_events(cq: *mut Cq, events: u32) {
            // SAFETY: the caller's queue.
            unsafe { cq::object(cq.cast::<CqObject>()) }.events.acknowledge(events);
        }
    }
}
