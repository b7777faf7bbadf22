//! Events of completion channels and of devices.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_trace::wait_readable;

use crate::context::{self, ContextObject};
use crate::symbols::export;
use crate::{channel, cq, errno, qp, srq};
use farcall_layout::{AsyncEvent, CompChannel, Context, Cq, Element, event_of, event_type};

/// Converts an event to C; `None` if its object does not exist any more.
fn translate(of: &ContextObject, event: &farcall_verbs::AsyncEvent) -> Option<AsyncEvent> {
    let number = event.element;
    let (event_type, element) = event_type(event.kind)?;
    let registry = &of.registry;
    // SAFETY: `hand_out` passes live objects of this library.
    let element: *mut c_void = unsafe {
        match element {
            Element::Cq => registry.cqs.hand_out(number, |cq| &cq::object(cq.cast()).async_events)?.cast(),
            Element::Qp => registry.qps.hand_out(number, |qp| &qp::object(qp).events)?.cast(),
            Element::Srq => registry.srqs.hand_out(number, |srq| &srq::object(srq).events)?.cast(),
            Element::Port => ptr::without_provenance_mut(number as usize),
        }
    };
    Some(AsyncEvent { element, event_type })
}

export! {
    "IBVERBS_1.1" {
        /// `man ibv_get_cq_event`.
        fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, cq_context: *mut *mut c_void) -> c_int {
            // SAFETY: contract of `ibv_get_cq_event` (man page): `channel` is live.
            let channel = unsafe { channel::object(channel) };
            // SAFETY: contract of `ibv_close_device` (man page): a context outlives its channels.
            let registry = &unsafe { context::object(channel.channel.context) }.registry;
            loop {
                let id = match channel.next() {
                    Ok(id) => id,
                    Err(number) => return errno::to_return_value(Err(number)),
                };
                // The event may belong to a queue that was destroyed in the meantime.
                // SAFETY: `hand_out` passes a live queue.
                if let Some(found) = registry.cqs.hand_out(id, |cq| &unsafe { cq::object(cq.cast()) }.events) {
                    // SAFETY: contract of `ibv_get_cq_event` (man page): the variables are valid. The queue is live,
                    // because `ibv_destroy_cq` waits until the event is acknowledged.
                    unsafe {
                        *cq = found;
                        *cq_context = (*found).cq_context;
                    }
                    return 0;
                }
            }
        }

        /// `man ibv_ack_cq_events`.
        fn ibv_ack_cq_events(cq: *mut Cq, events: u32) {
            // SAFETY: contract of `ibv_ack_cq_events` (man page): `cq` is live.
            unsafe { cq::object(cq.cast()) }.events.acknowledge(events);
        }

        /// `man ibv_get_async_event`: returns -1 and sets `errno` on failure.
        fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
            // SAFETY: contract of `ibv_get_async_event` (man page): `context` is open.
            let (of, fd) = unsafe { (context::object(context), (*context).async_fd) };
            loop {
                // SAFETY: the descriptor belongs to the context, which is open during the call.
                if let Err(number) = unsafe { wait_readable(fd) } {
                    return errno::to_return_value(Err(number));
                }
                while let Some(found) = of.provider.poll_async_event() {
                    if let Some(translated) = translate(of, &found) {
                        // SAFETY: contract of `ibv_get_async_event` (man page): `event` is valid.
                        unsafe { event.write(translated) };
                        return 0;
                    }
                }
            }
        }

        /// `man ibv_get_async_event`.
        fn ibv_ack_async_event(event: *mut AsyncEvent) {
            // SAFETY: contract of `ibv_ack_async_event` (man page): `event` was returned by `ibv_get_async_event`. Its
            // object is live, because its destruction waits for this acknowledgement.
            unsafe {
                let element = (*event).element;
                match event_of((*event).event_type) {
                    Some((_, Element::Cq)) => cq::object(element.cast()).async_events.acknowledge(1),
                    Some((_, Element::Qp)) => qp::object(element.cast()).events.acknowledge(1),
                    Some((_, Element::Srq)) => srq::object(element.cast()).events.acknowledge(1),
                    _ => {}
                }
            }
        }
    }
}
