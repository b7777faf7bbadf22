//! Events: conversion of the manager's events to C structures, and their effects on endpoints.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_layout::AhAttr;
use farcall_layout::rdmacm::{
    CmEvent, CmId, ConnParam, EventChannel, Param, UDP_QKEY, UdParam, event as kind,
};
use farcall_wire::cm::{
    ConnectionParams, Event, Rejection, Reply, Request, ServiceReply, ServiceRequest, private_data, reason,
};

use crate::attributes::path_to;
use crate::connection_manager::{DeliveredEvent, Id, IncomingRequest, QueuedEvent, Token};
use crate::errno::{Errno, invalid, refused, to_return_value};
use crate::id::{self, CmIdObject, PeerParams, Stage};
use crate::service::connection_manager;
use crate::symbols::export;
use crate::{channel, migrate, qp};

/// Upper limit of the private data of any message.
const DATA_BYTES: usize = 256;

/// An event, and data that it refers to until it is acknowledged.
#[repr(C)]
struct EventObject {
    event: CmEvent,
    /// The endpoint that waits for the acknowledgement.
    counted_on: *mut CmIdObject,
    data: [u8; DATA_BYTES],
}

impl EventObject {
    fn new(id: *mut CmIdObject, event: u32, status: c_int) -> Box<Self> {
        // SAFETY: a union of structures of integers and pointers, for which zero is valid.
        let param: Param = unsafe { std::mem::zeroed() };
        let event = CmEvent { id: id.cast(), listen_id: ptr::null_mut(), event, status, param };
        Box::new(Self { event, counted_on: id, data: [0; DATA_BYTES] })
    }

    /// Stores a peer's private data. Like the kernel's manager, it presents the full capacity of the message to
    /// programs, padded with zeros (man `rdma_get_cm_event`).
    fn keep(&mut self, data: &[u8], room: usize) -> (*const c_void, u8) {
        let len = data.len().min(room);
        self.data[..len].copy_from_slice(&data[..len]);
        (self.data.as_ptr().cast(), room as u8)
    }

    /// Stores the parameters that a peer offers or accepts, from the view of this endpoint: the peer's initiator depth
    /// is this side's responder resources.
    fn set_params(
        &mut self,
        params: &ConnectionParams,
        qp_num: u32,
        retry_count: u8,
        data: &[u8],
        room: usize,
    ) {
        let param = ConnParam {
            responder_resources: params.initiator_depth,
            initiator_depth: params.responder_resources,
            flow_control: params.flow_control.into(),
            retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq.into(),
            qp_num,
            ..ConnParam::default()
        };
        self.set_connection(param, data, room);
    }

    fn set_connection(&mut self, param: ConnParam, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { conn: ConnParam { private_data, private_data_len, ..param } };
    }

    fn set_service(&mut self, ah_attr: AhAttr, qp_num: u32, qkey: u32, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { ud: UdParam { private_data, private_data_len, ah_attr, qp_num, qkey } };
    }
}

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
        // SAFETY: `take` has counted the event as handed out, and `id::destroy` waits until it is acknowledged before
        // it frees the identifier.
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
    // SAFETY: the event is counted as handed out, and `id::destroy` waits until it is acknowledged before it frees the
    // listener's identifier.
    let listener = unsafe { &*taken.id.0 };
    let end = manager.end(token)?;
    let Some(incoming) = end.incoming.take() else { return Ok(None) };
    // SAFETY: `listener.c()` points into the live listener. The fields are set when the identifier is created; only
    // `rdma_migrate_id` changes the channel, which the program must not call concurrently.
    let (channel, context, ps, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    let space = id::space_of(ps)?;
    let id = Box::into_raw(id::make(token, channel, context, space, qp_type));
    end.id = Some(Id(id));
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
        QueuedEvent::Connection(Event::Disconnected) if about.lock_state().has_failed => None,
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
    id_state.stage = Stage::Connecting;
    (id_state.tos, id_state.ack_timeout) = {
        let of = listener.lock_state();
        (of.tos, of.ack_timeout)
    };
    let (from, to) = match &new_end.incoming {
        IncomingRequest::Connection(Request { route, .. })
        | IncomingRequest::Service(ServiceRequest { route, .. }) => (route.from, route.to),
    };
    new.set_local(&mut id_state, to);
    new.set_remote(&mut id_state, from);
    match &new_end.incoming {
        IncomingRequest::Connection(request) => {
            id_state.peer = Some(params_of(request));
            id_state.remote_ece = request.ece;
            let (qp_num, room) = (request.qp.qp_num, private_data::REQ_BYTES_MAX);
            event.set_params(&request.params, qp_num, request.retry_count, &request.private_data, room);
        }
        IncomingRequest::Service(request) => {
            let room = private_data::SIDR_REQ_BYTES_MAX;
            event.set_service(path_to(&[0; 16], 0), 0, 0, &request.private_data, room);
        }
    }
    drop(id_state);
    if listener.lock_state().is_sync {
        // SAFETY: `take` created the identifier; the program does not have it before it receives the event, and it is
        // not synchronous yet.
        if let Err(number) = unsafe { migrate::to_own_channel(new.c()) } {
            event.event.status = -number;
        }
    }
    Some(event)
}

fn params_of(request: &Request) -> PeerParams {
    PeerParams {
        qp: request.qp,
        gid: request.gid,
        mtu: request.mtu,
        retry_count: request.retry_count,
        rnr_retry_count: request.params.rnr_retry_count,
        ack_timeout: request.ack_timeout,
        reads_in: request.params.initiator_depth,
        reads_out: request.params.responder_resources,
    }
}

/// Handles the peer's acceptance. An endpoint with a queue pair becomes ready and notifies the peer; without one, the
/// program must do so (man `rdma_establish`).
fn respond(about: &CmIdObject, reply: &Reply) -> Box<EventObject> {
    {
        let mut id_state = about.lock_state();
        let (mtu, retry_count, ack_timeout) = id_state.peer.map_or((5, 7, id_state.ack_timeout), |params| {
            (params.mtu, params.retry_count, params.ack_timeout)
        });
        id_state.peer = Some(PeerParams {
            qp: reply.qp,
            gid: about.resolved_gid(),
            mtu,
            retry_count,
            rnr_retry_count: reply.params.rnr_retry_count,
            ack_timeout,
            reads_in: reply.params.initiator_depth,
            reads_out: reply.params.responder_resources,
        });
        id_state.remote_ece = reply.ece;
    }
    let id = ptr::from_ref(about).cast_mut();
    // SAFETY: `about.c()` points into `about`, which is live; the field is set only by `rdma_create_qp` and
    // `rdma_destroy_qp`, which the program does not call concurrently.
    let has_qp = unsafe { !(*about.c()).qp.is_null() };
    let mut event = if has_qp {
        match become_ready(about) {
            Ok(()) => EventObject::new(id, kind::ESTABLISHED, 0),
            Err(number) => {
                about.lock_state().has_failed = true;
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
    let Some(connection) = &mut manager.end(about.token)?.connection else { return Err(over()) };
    let message = match readied {
        Ok(()) => connection.ready().map_err(|_| over())?,
        Err(_) => connection.reject(Vec::new()).ok(),
    };
    manager.apply_step(about.token, farcall_wire::cm::Step { message, event: None });
    readied
}

/// Handles a rejection, or the peer's exit before the connection was established.
fn refuse(about: &CmIdObject, rejection: &Rejection) -> Option<Box<EventObject>> {
    if about.lock_state().has_failed {
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
    let path = path_to(&about.resolved_gid(), about.lock_state().tos);
    event.set_service(path, reply.qp_num, qkey, &reply.private_data, private_data::SIDR_REP_BYTES_MAX);
    event
}

/// Returns the result of the call that waited for an event.
///
/// # Safety
/// `event` must be an event of this library that is not acknowledged.
pub unsafe fn outcome(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: contract of this function: `event` is not acknowledged, so it is live.
    let (event, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(()),
        reason if event == kind::REJECTED => Err(refused(
            libc::ECONNREFUSED,
            format_args!("rejected, for reason {reason} (InfiniBand, 12.6.7.2)"),
        )),
        number => {
            let name =
                kind::NAMES.get(event as usize).map_or("unknown", |name| name.to_str().unwrap_or_default());
            Err(refused(number.abs(), format_args!("{name}, status {number}")))
        }
    }
}

/// # Safety
/// `event` must be an event of this library, which is not used after this call.
pub unsafe fn acknowledge(event: *mut CmEvent) {
    // SAFETY: contract of this function: `next` made `event` with `Box::into_raw`, and it is not used any more. Its
    // endpoint's identifier is live, because `id::destroy` waits for this acknowledgement.
    unsafe {
        let event = Box::from_raw(event.cast::<EventObject>());
        (*event.counted_on).reported.acknowledge(1);
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
                let connection = manager.end(token)?.connection.as_mut();
                let connection = connection.ok_or_else(|| invalid("there is no connection"))?;
                let step = connection.comm_established();
                let step = step.map_err(|state| refused(libc::EISCONN, format_args!("{state}")))?;
                manager.apply_step(token, step);
                Ok(())
            }))
        }
    }
}
