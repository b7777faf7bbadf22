//! Completion queues.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_trace::{EmptyPolls, Unacknowledged, now_ns};
use farcall_verbs::{Notify, RawCq, Wc};

use crate::context;
use crate::symbols::export;
use crate::use_count::UseCount;
use crate::{channel, errno, live};
use farcall_layout::{Cq, CqEx};

#[repr(C)]
pub struct CqObject {
    pub cq: CqEx,
    provider: Mutex<Box<dyn RawCq>>,
    pub events: Unacknowledged,
    pub async_events: Unacknowledged,
    pub uses: UseCount,
    /// Updated only while calls are traced.
    pub empty_polls: EmptyPolls,
    id: u32,
    /// The current completion of `ibv_start_poll` and `ibv_next_poll`.
    pub current: Wc,
    pub current_ns: u64,
}

/// # Safety
/// `cq` must have been created by [`CqObject::create`] and be live.
pub unsafe fn object<'a>(cq: *mut CqObject) -> &'a CqObject {
    // SAFETY: contract of this function: `cq` is live. Fields that change are behind locks, or accessed only by the
    // one thread that polls.
    unsafe { &*cq }
}

impl CqObject {
    /// Creates the object of a completion queue with its functions, and registers it.
    pub fn create(cq: CqEx, provider: Box<dyn RawCq>) -> *mut Self {
        let (context, id) = (cq.base.context, cq.base.handle);
        let made = Box::into_raw(Box::new(Self {
            cq,
            provider: Mutex::new(provider),
            events: Unacknowledged::default(),
            async_events: Unacknowledged::default(),
            uses: UseCount::default(),
            empty_polls: EmptyPolls::default(),
            id,
            current: Wc::default(),
            current_ns: now_ns(),
        }));
        // SAFETY: `made` was just created, and its context is open.
        unsafe {
            live::COMPLETION_QUEUES.insert(made.cast::<Cq>());
            context::object(context).registry.cqs.insert(id, made.cast());
        }
        made
    }

    pub fn lock(&self) -> MutexGuard<'_, Box<dyn RawCq>> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See `man ibv_poll_cq`: returns the number of completions, or a negative number if the queue overran.
pub unsafe extern "C" fn poll(cq: *mut Cq, num_entries: c_int, wc: *mut Wc) -> c_int {
    let Ok(room) = usize::try_from(num_entries) else { return -1 };
    if room == 0 {
        return 0;
    }
    // SAFETY: contract of `ibv_poll_cq` (man page): `wc` has `num_entries` elements. Any bytes are a valid `Wc`.
    let wcs = unsafe { std::slice::from_raw_parts_mut(wc, room) };
    // SAFETY: contract of `ibv_poll_cq` (man page): `cq` is live.
    let polled = unsafe { object(cq.cast()) }.lock().poll(wcs);
    match polled {
        Ok(taken) => taken as c_int,
        Err(error) => -errno::number(&error),
    }
}

/// See `man ibv_req_notify_cq`. Without a channel there is no event, and the call fails: a program that waits for one
/// would never wake up.
pub unsafe extern "C" fn req_notify(cq: *mut Cq, solicited_only: c_int) -> c_int {
    let notify = if solicited_only != 0 { Notify::Solicited } else { Notify::Any };
    // SAFETY: contract of `ibv_req_notify_cq` (man page): `cq` is live.
    errno::code(unsafe { object(cq.cast()) }.lock().req_notify(notify))
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_destroy_cq`: waits until events are acknowledged.
        fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
            let address = cq.cast::<CqObject>();
            if let Err(number) = live::COMPLETION_QUEUES.check(cq) {
                return number;
            }
            // SAFETY: the queue is live (checked above).
            let of = unsafe { object(address) };
            if let Err(number) = of.uses.check_none().and_then(|()| live::COMPLETION_QUEUES.remove(cq)) {
                return number;
            }
            // SAFETY: contract of `ibv_close_device` (man page): a context outlives its queues.
            unsafe { context::object(of.cq.base.context) }.registry.cqs.remove(of.id);
            of.events.wait();
            of.async_events.wait();
            if !of.cq.base.channel.is_null() {
                // SAFETY: the channel is live, because it cannot be destroyed while its use count is positive.
                unsafe { channel::object(of.cq.base.channel) }.uses.remove();
            }
            // SAFETY: `CqObject::create` made it with `Box::into_raw`. No queue pair uses it, and `remove` succeeds only once.
            drop(unsafe { Box::from_raw(address) });
            0
        }

        /// `man ibv_resize_cq`: completions wait at their queue pairs, which have room for each of them. A queue
        /// therefore holds all possible completions, whatever its size.
        fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
            if let Err(number) = live::COMPLETION_QUEUES.check(cq) {
                return number;
            }
            // SAFETY: the queue is live (checked above), and its context outlives it.
            let cqe_max = unsafe { context::object((*cq).context) }.limits.max_cqe;
            if !(1..=cqe_max).contains(&cqe) {
                return errno::refused(libc::EINVAL, format_args!("cqe {cqe}; a queue holds 1 to {cqe_max}"));
            }
            // SAFETY: the queue is live (checked above).
            unsafe { ptr::addr_of_mut!((*cq).cqe).write(cqe) };
            0
        }
    }
}
