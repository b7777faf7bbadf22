//! Asynchronous events.

use std::mem::MaybeUninit;

use farcall_layout::{self as abi, Element};
use farcall_verbs::AsyncEvent;

use crate::open_device::OpenDevice;

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
    let (kind, element) = abi::event_of(raw.event_type)?;
    // SAFETY: the type tells what the element points to, and it lives until acknowledged. Queues have their number, set
    // by us, as context.
    let element = unsafe {
        match element {
            Element::Cq => (*raw.element.cast::<abi::Cq>()).cq_context as u32,
            Element::Qp => (*raw.element.cast::<abi::Qp>()).qp_num,
            Element::Srq => (*raw.element.cast::<abi::Srq>()).srq_context as u32,
            // An int in the same union.
            Element::Port => raw.element as u32,
        }
    };
    Some(AsyncEvent { kind, element })
}
