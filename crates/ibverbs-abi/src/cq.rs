//! Completion queues.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall_trace::EmptyPolls;
use farcall_verbs::{CqInitAttr, Notify, RawCq, Wc};

use crate::context::{self, raw_clock_ns};
use crate::registry::{Address, Registry, Unacknowledged};
use crate::symbols::export;
use crate::uses::Uses;
use crate::{channel, cq_ex, errno, traced};
use farcall_ibv::abi::whole::{CompChannel, Context, Cq, CqEx};

#[repr(C)]
pub struct CqObject {
    pub cq: CqEx,
    pub provider: Mutex<Box<dyn RawCq>>,
    pub events: Unacknowledged,
    pub async_events: Unacknowledged,
    pub uses: Uses,
    /// Counted when calls are shown.
    pub empty_polls: EmptyPolls,
    id: u32,
    /// The completion that `ibv_start_poll` and `ibv_next_poll` stand at.
    pub current: Wc,
    pub current_ns: u64,
}

/// # Safety
/// `cq` must come from [`create`].
pub unsafe fn object<'a>(cq: *mut CqObject) -> &'a CqObject {
    // SAFETY: the caller's promise. Fields that change are behind locks, or of the one thread that polls.
    unsafe { &*cq }
}

impl CqObject {
    pub fn lock(&self) -> MutexGuard<'_, Box<dyn RawCq>> {
        self.provider.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue a completion event is about, which then waits for its acknowledgement.
pub fn find(registry: &Registry, id: u32) -> Option<Address<CqObject>> {
    hand_out(registry, id, |found| &found.events)
}

/// The queue an asynchronous event is about, which then waits for its acknowledgement.
pub fn find_async(registry: &Registry, id: u32) -> Option<Address<CqObject>> {
    hand_out(registry, id, |found| &found.async_events)
}

fn hand_out(
    registry: &Registry,
    id: u32,
    events: impl Fn(&CqObject) -> &Unacknowledged,
) -> Option<Address<CqObject>> {
    let cqs = registry.cqs.lock().unwrap_or_else(PoisonError::into_inner);
    let found = cqs.get(&id).copied()?;
    // SAFETY: registered queues live: they are removed under this lock before they die.
    events(unsafe { object(found.0) }).handed_out();
    Some(found)
}

/// # Safety
/// The pointers must be the program's valid objects, or null where the man page allows.
pub unsafe fn create(
    context: *mut Context,
    cqe: u32,
    cq_context: *mut c_void,
    comp_channel: *mut CompChannel,
) -> Result<*mut CqObject, c_int> {
    // SAFETY: the caller's objects.
    let of = unsafe { context::object(context) };
    // SAFETY: as above.
    let through = (!comp_channel.is_null()).then(|| unsafe { channel::object(comp_channel) });
    let attr = CqInitAttr { cqe, channel: through.map(|channel| &*channel.provider) };
    let provider = of.provider.create_cq(&attr).map_err(|error| errno::number(&error))?;
    if let Some(channel) = through {
        channel.uses.add();
    }
    let id = provider.id();
    let base = Cq {
        context,
        channel: comp_channel,
        cq_context,
        handle: id,
        cqe: cqe as c_int,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let mut functions = cq_ex::table(base);
    if farcall_trace::is_on() {
        traced::cq_table(&mut functions);
    }
    let made = Box::into_raw(Box::new(CqObject {
        cq: functions,
        provider: Mutex::new(provider),
        events: Unacknowledged::default(),
        async_events: Unacknowledged::default(),
        uses: Uses::default(),
        empty_polls: EmptyPolls::default(),
        id,
        current: Wc::default(),
        current_ns: raw_clock_ns(),
    }));
    of.registry.cqs.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Address(made));
    Ok(made)
}

/// As `man ibv_poll_cq`: how many, or negative if the queue overran.
pub unsafe extern "C" fn poll(cq: *mut Cq, num_entries: c_int, wc: *mut Wc) -> c_int {
    let Ok(room) = usize::try_from(num_entries) else { return -1 };
    if room == 0 {
        return 0;
    }
    // SAFETY: the program's array of `num_entries` elements; `Wc` is valid with any bytes.
    let wcs = unsafe { std::slice::from_raw_parts_mut(wc, room) };
    // SAFETY: the program's queue.
    let polled = unsafe { object(cq.cast()) }.lock().poll(wcs);
    match polled {
        Ok(taken) => taken as c_int,
        Err(error) => -errno::number(&error),
    }
}

/// As `man ibv_req_notify_cq`. Without a channel there is nobody to tell, which is no error on any device.
pub unsafe extern "C" fn req_notify(cq: *mut Cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program's queue.
    if unsafe { (*cq).channel.is_null() } {
        return 0;
    }
    let notify = if solicited_only != 0 { Notify::Solicited } else { Notify::Any };
    // SAFETY: the program's queue.
    match unsafe { object(cq.cast()) }.lock().req_notify(notify) {
        Ok(()) => 0,
        Err(error) => errno::number(&error),
    }
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_create_cq`.
        fn ibv_create_cq(
            context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel, comp_vector: c_int,
        ) -> *mut Cq {
            let (Ok(cqe), true) = (u32::try_from(cqe), comp_vector == 0) else { return errno::null(libc::EINVAL) };
            if cqe == 0 {
                return errno::null(libc::EINVAL);
            }
            // SAFETY: the caller's objects.
            match unsafe { create(context, cqe, cq_context, channel) } {
                Ok(made) => made.cast(),
                Err(number) => errno::null(number),
            }
        }

        /// `man ibv_destroy_cq`: waits until events are acknowledged.
        fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
            let address = cq.cast::<CqObject>();
            // SAFETY: the caller's queue.
            let of = unsafe { object(address) };
            if let Err(number) = of.uses.check_none() {
                return number;
            }
            // SAFETY: contexts outlive their queues.
            let registry = &unsafe { context::object(of.cq.base.context) }.registry;
            registry.cqs.lock().unwrap_or_else(PoisonError::into_inner).remove(&of.id);
            of.events.wait();
            of.async_events.wait();
            if !of.cq.base.channel.is_null() {
                // SAFETY: channels outlive their queues, because they are counted.
                unsafe { channel::object(of.cq.base.channel) }.uses.remove();
            }
            // SAFETY: made by `create`, and nothing uses it.
            drop(unsafe { Box::from_raw(address) });
            0
        }

        /// `man ibv_resize_cq`: completions wait at their queue pairs, which have a place for each, so a queue holds as many as
        /// there can be, whatever it was made or resized to.
        fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int {
            if cqe < 1 {
                return libc::EINVAL;
            }
            // SAFETY: the caller's queue.
            unsafe { ptr::addr_of_mut!((*cq).cqe).write(cqe) };
            0
        }
    }
}
