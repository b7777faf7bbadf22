//! Completion channels.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farcall_trace::wait_readable;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::context;
use crate::errno;
use crate::live;
use crate::symbols::export;
use crate::use_count::UseCount;
use farcall_layout::{CompChannel, Context};

#[repr(C)]
pub struct ChannelObject {
    pub channel: CompChannel,
    pub provider: Arc<dyn farcall_verbs::CompChannel>,
    pub uses: UseCount,
}

/// # Safety
/// `channel` must have been created by [`ibv_create_comp_channel`] and be live.
pub unsafe fn object<'a>(channel: *mut CompChannel) -> &'a ChannelObject {
    // SAFETY: contract of this function: `channel` is live. The C structure is the first field of its object
    // (`repr(C)`).
    unsafe { &*channel.cast::<ChannelObject>() }
}

impl ChannelObject {
    /// Waits for an event, unless the program has made the descriptor non-blocking.
    pub fn next(&self) -> Result<u32, c_int> {
        loop {
            // Before the provider polls: its read would block on a descriptor in the default mode.
            // SAFETY: the descriptor is owned by the channel, which is borrowed for the duration of the call.
            unsafe { wait_readable(self.channel.fd)? };
            match self.provider.poll_cq_event() {
                Ok(Some(id)) => return Ok(id),
                Ok(None) => {}
                Err(error) => return Err(errno::number(&error)),
            }
        }
    }
}

/// Makes a descriptor blocking, as programs expect; they may change that.
pub fn make_blocking(fd: c_int) {
    // SAFETY: the caller holds the object that owns the descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags - OFlags::NONBLOCK));
}

export! {
    "IBVERBS_1.0" {
        /// `man ibv_create_comp_channel`.
        fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
            // SAFETY: contract of `ibv_create_comp_channel` (man page): `context` is open.
            match unsafe { context::object(context) }.provider.create_comp_channel() {
                Ok(provider) => {
                    make_blocking(provider.fd());
                    let channel = CompChannel { context, fd: provider.fd(), refcnt: 0 };
                    let object = ChannelObject { channel, provider, uses: UseCount::default() };
                    let made: *mut CompChannel = Box::into_raw(Box::new(object)).cast();
                    // SAFETY: `made` was just created.
                    unsafe { live::CHANNELS.insert(made) };
                    made
                }
                Err(error) => errno::null(errno::number(&error)),
            }
        }

        /// `man ibv_destroy_comp_channel`.
        fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
            let known = live::CHANNELS.check(channel);
            // SAFETY: the closure runs only if `channel` is live (checked above).
            let is_free = known.and_then(|()| unsafe { object(channel) }.uses.check_none());
            if let Err(number) = is_free.and_then(|()| live::CHANNELS.remove(channel)) {
                return number;
            }
            // SAFETY: `ibv_create_comp_channel` made it with `Box::into_raw`. No completion queue uses it, and
            // `remove` succeeds only once.
            drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
            0
        }
    }
}
