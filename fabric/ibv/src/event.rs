//! Asynchronous events.

use std::mem::MaybeUninit;

use farcall_layout::{self as abi, Element};
use farcall_verbs::AsyncEvent;

use crate::open_device::OpenDevice;

/// Takes and acknowledges the next event of a known type.
pub(crate) fn next(open: &OpenDevice) -> Option<AsyncEvent> {
    loop {
        let mut raw = MaybeUninit::<abi::AsyncEvent>::zeroed();
        // SAFETY: the function fills in the structure or fails; the device is open, and its descriptor does not block.
        if unsafe { (open.library.get_async_event)(open.as_ptr(), raw.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call succeeded and filled in the structure.
        let mut raw = unsafe { raw.assume_init() };
        // SAFETY: the event was received and is acknowledged below. Until then the library keeps its object alive: the
        // destruction of the object waits.
        let event = unsafe { translate(&raw) };
        // SAFETY: `get_async_event` returned the event, and it is acknowledged only here.
        unsafe { (open.library.ack_async_event)(&raw mut raw) };
        match event {
            Some(event) => return Some(event),
            None => tracing::debug!("{}: event {} has no meaning here", open.name, raw.event_type),
        }
    }
}

/// Translates an event of the library; `None` for an unknown type.
///
/// # Safety
/// The event must have been received and not yet acknowledged.
unsafe fn translate(raw: &abi::AsyncEvent) -> Option<AsyncEvent> {
    let (kind, element) = abi::event_of(raw.event_type)?;
    // SAFETY: the event type determines the type of the object that the element points to, and the object exists until
    // the event is acknowledged (contract of this function). Queues have their number as context, set at creation.
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
