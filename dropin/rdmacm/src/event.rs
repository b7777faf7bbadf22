//! Events: conversion of the manager's events to C structures, and their effects on endpoints.

use std::ffi::c_int;
use std::ptr;

use farcall_layout::rdmacm::{CmEvent, CmId, ConnParam, EventChannel, UDP_QKEY, event as kind};
use farcall_wire::cm::{
    Event, Rejection, Reply, Request, ServiceReply, ServiceRequest, private_data, reason,
};

use crate::attributes::path_to;
use crate::connection_manager::{DeliveredEvent, Id};
use crate::errno::{Errno, invalid, refused, to_return_value};
use crate::event_object::{EventObject, acknowledge, acknowledge_last, outcome};
use crate::event_queue::QueuedEvent;
use crate::id::{self, CmIdObject};
use crate::id_state::Stage;
use crate::listener::IncomingRequest;
use crate::service::connection_manager;
use crate::symbols::export;
use crate::token::Token;
use crate::{channel, migrate, qp};

/// Returns the next event of a channel. Waits for it, unless the program has made the descriptor non-blocking.
///
/// # Safety
/// `channel` must be a live channel of the program.
pub unsafe fn next(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    // SAFETY: contract of this function: `channel` is live.
    let of = unsafe { channel::object(channel) };
    loop {
        of.wait()?;
        // Another thread may have taken the event, or its endpoint may have been removed.
        let Some((taken, incoming)) = take(of.queue)? else { continue };
        // SAFETY: `take` has counted the event as handed out, and `create_id::destroy` waits until it is acknowledged
        // before it frees the identifier.
        let about = unsafe { &*taken.id.0 };
        match convert_event(about, taken, incoming) {
            Some(event) => return Ok(Box::into_raw(event).cast()),
            None => about.reported.acknowledge(1),
        }
    }
}

/// A new endpoint, and its peer's request.
struct NewEnd {
    id: *mut CmIdObject,
    incoming: IncomingRequest,
}

/// Takes an event. For a request, creates the identifier of the new endpoint.
fn take(queue: Token) -> Result<Option<(DeliveredEvent, Option<NewEnd>)>, Errno> {
    let mut manager = connection_manager()?;
    let Some(taken) = manager.take(queue) else { return Ok(None) };
    let QueuedEvent::Request { end: token, .. } = taken.notice else { return Ok(Some((taken, None))) };
    // SAFETY: the event is counted as handed out, and `create_id::destroy` waits until it is acknowledged before it
    // frees the listener's identifier.
    let listener = unsafe { &*taken.id.0 };
    let end = manager.end(token)?;
    let Some(incoming) = end.take_request() else { return Ok(None) };
    // SAFETY: `listener.c()` points into the live listener. The fields are set when the identifier is created; only
    // `rdma_migrate_id` changes the channel, which the program must not call concurrently.
    let (channel, context, ps, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    let space = id::space_of(ps)?;
    let id = Box::into_raw(id::make(token, channel, context, space, qp_type));
    end.set_id(Id(id));
    Ok(Some((taken, Some(NewEnd { id, incoming }))))
}

/// Returns the event for the program, after applying its effects on this side; `None` if the program must not receive
/// it.
fn convert_event(
    about: &CmIdObject,
    taken: DeliveredEvent,
    new_end: Option<NewEnd>,
) -> Option<Box<EventObject>> {
    let plain = |event, status| Some(EventObject::new(taken.id.0, event, status));
    match taken.notice {
        QueuedEvent::AddressResolved => plain(kind::ADDR_RESOLVED, 0),
        QueuedEvent::AddressError(number) => plain(kind::ADDR_ERROR, -number),
        QueuedEvent::RouteResolved => plain(kind::ROUTE_RESOLVED, 0),
        QueuedEvent::Request { .. } => new_end.and_then(|new_end| convert_request(about, &new_end)),
        QueuedEvent::Connection(Event::Response(reply)) => Some(respond(about, &reply)),
        QueuedEvent::Connection(Event::Rejected(rejection)) => refuse(about, &rejection),
        QueuedEvent::Connection(Event::Established) => plain(kind::ESTABLISHED, 0),
        QueuedEvent::Connection(Event::Disconnected) if about.lock_state().has_failed() => None,
        QueuedEvent::Connection(Event::Disconnected) => plain(kind::DISCONNECTED, 0),
        QueuedEvent::Connection(Event::Service(reply)) => Some(serve(about, &reply)),
        QueuedEvent::Connection(Event::Unreachable) => plain(kind::UNREACHABLE, -libc::ETIMEDOUT),
        QueuedEvent::Connection(Event::TimewaitExit) => plain(kind::TIMEWAIT_EXIT, 0),
    }
}

/// Converts a request: attaches the device to the new endpoint, and sets its addresses and the peer's parameters.
fn convert_request(listener: &CmIdObject, new_end: &NewEnd) -> Option<Box<EventObject>> {
    // SAFETY: `take` created the identifier, and only this thread uses it until the program receives the event.
    let new = unsafe { &*new_end.id };
    if let Err(number) = new.attach() {
        tracing::debug!("a request without a device: error {number}");
    }
    let mut event = EventObject::new(new_end.id, kind::CONNECT_REQUEST, 0);
    event.counted_on = ptr::from_ref(listener).cast_mut();
    event.event.listen_id = listener.c();
    let mut id_state = new.lock_state();
    id_state.enter(Stage::Connecting);
    (id_state.options.tos, id_state.options.ack_timeout) = {
        let of = listener.lock_state();
        (of.options.tos, of.options.ack_timeout)
    };
    let (from, to) = match &new_end.incoming {
        IncomingRequest::Connection(Request { route, .. })
        | IncomingRequest::Service(ServiceRequest { route, .. }) => (route.from, route.to),
    };
    new.set_local(&mut id_state, to);
    new.set_remote(&mut id_state, from);
    match &new_end.incoming {
        IncomingRequest::Connection(request) => {
            id_state.requested(request);
            let (qp_num, room) = (request.qp.qp_num, private_data::REQ_BYTES_MAX);
            event.set_params(&request.params, qp_num, request.retry_count, &request.private_data, room);
        }
        IncomingRequest::Service(request) => {
            let room = private_data::SIDR_REQ_BYTES_MAX;
            event.set_service(path_to(&[0; 16], 0), 0, 0, &request.private_data, room);
        }
    }
    drop(id_state);
    if listener.lock_state().is_sync() {
        // SAFETY: `take` created the identifier; the program does not have it before it receives the event, and it is
        // not synchronous yet.
        if let Err(number) = unsafe { migrate::to_own_channel(new.c()) } {
            event.event.status = -number;
        }
    }
    Some(event)
}

/// Handles the peer's acceptance. An endpoint with a queue pair becomes ready and notifies the peer; without one, the
/// program must do so (man `rdma_establish`).
fn respond(about: &CmIdObject, reply: &Reply) -> Box<EventObject> {
    about.lock_state().replied(reply, about.resolved_gid());
    let id = ptr::from_ref(about).cast_mut();
    // SAFETY: `about.c()` points into `about`, which is live; the field is set only by `rdma_create_qp` and
    // `rdma_destroy_qp`, which the program does not call concurrently.
    let has_qp = unsafe { !(*about.c()).qp.is_null() };
    let mut event = if has_qp {
        match become_ready(about) {
            Ok(()) => EventObject::new(id, kind::ESTABLISHED, 0),
            Err(number) => {
                about.lock_state().fail();
                EventObject::new(id, kind::CONNECT_ERROR, -number)
            }
        }
    } else {
        EventObject::new(id, kind::CONNECT_RESPONSE, 0)
    };
    let room = private_data::REP_BYTES_MAX;
    event.set_params(&reply.params, reply.qp.qp_num, 0, &reply.private_data, room);
    event
}

fn over() -> Errno {
    refused(libc::ENOTCONN, format_args!("the connection has ended"))
}

/// Moves the queue pair to RTS and notifies the peer, or rejects the connection if that fails.
fn become_ready(about: &CmIdObject) -> Result<(), Errno> {
    // SAFETY: the program does not destroy its queue pair while it waits for this event.
    let readied = unsafe { qp::to_ready(about, None, None) };
    let mut manager = connection_manager()?;
    let Some(connection) = manager.end(about.token)?.connection() else { return Err(over()) };
    let message = match readied {
        Ok(()) => connection.ready().map_err(|_| over())?,
        Err(_) => connection.reject(Vec::new()).ok(),
    };
    manager.apply_step(about.token, farcall_wire::cm::Step { message, event: None });
    readied
}

/// Handles a rejection, or the peer's exit before the connection was established.
fn refuse(about: &CmIdObject, rejection: &Rejection) -> Option<Box<EventObject>> {
    if about.lock_state().has_failed() {
        return None;
    }
    // SAFETY: the program does not destroy its queue pair while it waits for this event.
    if let Err(number) = unsafe { qp::to_error(about) } {
        tracing::debug!("a refused queue pair stays as it is: error {number}");
    }
    let id = ptr::from_ref(about).cast_mut();
    let mut event = EventObject::new(id, kind::REJECTED, rejection.reason.into());
    event.set_connection(ConnParam::default(), &rejection.private_data, private_data::REJ_BYTES_MAX);
    Some(event)
}

/// Converts the reply with a datagram service's queue pair, or the reason why there is none.
fn serve(about: &CmIdObject, reply: &ServiceReply) -> Box<EventObject> {
    let id = ptr::from_ref(about).cast_mut();
    let (event, qkey) = match reply.status {
        reason::SIDR_SUCCESS => (kind::ESTABLISHED, reply.qkey),
        _ => (kind::UNREACHABLE, UDP_QKEY),
    };
    let mut event = EventObject::new(id, event, reply.status.into());
    let path = path_to(&about.resolved_gid(), about.lock_state().options.tos);
    event.set_service(path, reply.qp_num, qkey, &reply.private_data, private_data::SIDR_REP_BYTES_MAX);
    event
}

/// Acknowledges the last event of a synchronous endpoint, and waits for the next one.
///
/// # Safety
/// `id` must be a live identifier of the program, and synchronous.
pub unsafe fn next_event(id: *mut CmId) -> Result<*mut CmEvent, Errno> {
    // SAFETY: contract of this function: `id` is live and synchronous, so its channel is one of this library that
    // lives as long as the identifier.
    unsafe {
        acknowledge_last(id);
        next((*id).channel)
    }
}

/// Completes a call that causes an event: returns at once, or after the event if the endpoint is synchronous.
///
/// # Safety
/// `id` must be a live identifier of the program.
pub unsafe fn complete(id: *mut CmId) -> Result<(), Errno> {
    // SAFETY: contract of this function: `id` is live. `next_event` is called only if it is synchronous, and returns
    // an event that is not acknowledged.
    unsafe {
        if !id::object(id).lock_state().is_sync() {
            return Ok(());
        }
        let event = next_event(id)?;
        (*id).event = event;
        outcome(event)
    }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_get_cm_event`.
        fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
            if channel.is_null() || event.is_null() {
                return to_return_value(Err(invalid("no channel, or no place for the event")));
            }
            // SAFETY: contract of `rdma_get_cm_event` (man page): `channel` is live, and `event` points to a variable.
            to_return_value(unsafe { next(channel).map(|next| *event = next) })
        }

        /// `man rdma_ack_cm_event`.
        fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
            if event.is_null() {
                return to_return_value(Err(invalid("no event")));
            }
            // SAFETY: contract of `rdma_ack_cm_event` (man page): `event` was returned by `rdma_get_cm_event`, and is
            // not used after the call.
            unsafe { acknowledge(event) };
            0
        }

        /// `man rdma_notify`: a peer uses the connection before its RTU has arrived.
        fn rdma_notify(id: *mut CmId, event: u32) -> c_int {
            const COMM_EST: u32 = 4;
            if event != COMM_EST {
                return to_return_value(Err(invalid(format_args!("event {event}: only COMM_EST (4) is for an identifier"))));
            }
            // SAFETY: contract of `rdma_notify` (man page): `id` is a live identifier.
            let token = unsafe { id::object(id) }.token;
            to_return_value(connection_manager().and_then(|mut manager| {
                let connection = manager.end(token)?.connection();
                let connection = connection.ok_or_else(|| invalid("there is no connection"))?;
                let step = connection.comm_established();
                let step = step.map_err(|state| refused(libc::EISCONN, format_args!("{state}")))?;
                manager.apply_step(token, step);
                Ok(())
            }))
        }
    }
}
