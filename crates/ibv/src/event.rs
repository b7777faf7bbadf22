//! Asynchronous events.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use farcall_verbs::{AsyncEvent, AsyncEventKind};

use crate::abi;
use crate::context::OpenDevice;

/// What the number of an event is about: a kind of ours and how to name the element.
enum About {
    Cq(AsyncEventKind),
    Qp(AsyncEventKind),
    Srq(AsyncEventKind),
    Port(AsyncEventKind),
}

/// `enum ibv_event_type`. Path migration, and changes that the subnet manager makes, are nothing we use.
fn about(event_type: c_int) -> Option<About> {
    use AsyncEventKind::{
        CommEst, CqErr, DeviceFatal, PortActive, PortErr, QpAccessErr, QpFatal, QpLastWqeReached, QpReqErr,
        SqDrained, SrqErr, SrqLimitReached,
    };
    Some(match event_type {
        0 => About::Cq(CqErr),
        1 => About::Qp(QpFatal),
        2 => About::Qp(QpReqErr),
        3 => About::Qp(QpAccessErr),
        4 => About::Qp(CommEst),
        5 => About::Qp(SqDrained),
        8 => About::Port(DeviceFatal),
        9 => About::Port(PortActive),
        10 => About::Port(PortErr),
        14 => About::Srq(SrqErr),
        15 => About::Srq(SrqLimitReached),
        16 => About::Qp(QpLastWqeReached),
        _ => return None,
    })
}

/// Takes and acknowledges the next event that has a meaning here.
pub(crate) fn next(open: &OpenDevice) -> Option<AsyncEvent> {
    loop {
        let mut raw = MaybeUninit::<abi::AsyncEvent>::zeroed();
        // SAFETY: the function fills in the structure or fails; the descriptor does not block.
        if unsafe { (open.library.get_async_event)(open.as_ptr(), raw.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled in by the call.
        let mut raw = unsafe { raw.assume_init() };
        // SAFETY: until it is acknowledged, below, the library keeps the event's object alive: destroying waits.
        let event = unsafe { translate(&raw) };
        // SAFETY: got by `get_async_event` and acknowledged once.
        unsafe { (open.library.ack_async_event)(&raw mut raw) };
        match event {
            Some(event) => return Some(event),
            None => tracing::debug!("{}: event {} has no meaning here", open.name, raw.event_type),
        }
    }
}

/// # Safety
/// The event must have been got, and not yet acknowledged.
unsafe fn translate(raw: &abi::AsyncEvent) -> Option<AsyncEvent> {
    // SAFETY: the type tells what the element points to, and it lives until acknowledged. Queues have their number, set by
    // us, as context.
    let (kind, element) = unsafe {
        match about(raw.event_type)? {
            About::Cq(kind) => (kind, (*raw.element.cast::<abi::Cq>()).cq_context as u32),
            About::Qp(kind) => (kind, (*raw.element.cast::<abi::Qp>()).qp_num),
            About::Srq(kind) => (kind, (*raw.element.cast::<abi::Srq>()).srq_context as u32),
            // An int in the same union.
            About::Port(kind) => (kind, raw.element as u32),
        }
    };
    Some(AsyncEvent { kind, element })
}
