//! Events: from what the world says to what C sees, and what an event leads to.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_cm::{
    Event, PortSpace, Rejection, Reply, Request, ServiceReply, ServiceRequest, private_data, reason,
};
use farcall_ibv::abi::cm::{CmEvent, CmId, ConnParam, EventChannel, Param, UDP_QKEY, UdParam, event as kind};
use farcall_ibv::abi::whole::AhAttr;

use crate::attributes::path_to;
use crate::errno::{Errno, answer};
use crate::id::{self, IdObject, Peer, Stage};
use crate::service::world;
use crate::symbols::export;
use crate::world::{Asked, Id, Notice, Taken, Token};
use crate::{channel, migrate, qp};

/// More private data than any message has.
const DATA_BYTES: usize = 256;

/// An event, and what it needs as long as the program looks at it.
#[repr(C)]
struct EventObject {
    event: CmEvent,
    /// Which end waits for the acknowledgement.
    counted_on: *mut IdObject,
    data: [u8; DATA_BYTES],
}

impl EventObject {
    fn new(id: *mut IdObject, event: u32, status: c_int) -> Box<Self> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let param: Param = unsafe { std::mem::zeroed() };
        let event = CmEvent { id: id.cast(), listen_id: ptr::null_mut(), event, status, param };
        Box::new(Self { event, counted_on: id, data: [0; DATA_BYTES] })
    }

    /// Keeps a peer's bytes. As with the kernel's manager, programs see all the room that the message has, with zeros
    /// behind (man `rdma_get_cm_event`).
    fn keep(&mut self, data: &[u8], room: usize) -> (*const c_void, u8) {
        let len = data.len().min(room);
        self.data[..len].copy_from_slice(&data[..len]);
        (self.data.as_ptr().cast(), room as u8)
    }

    fn show_connection(&mut self, param: ConnParam, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { conn: ConnParam { private_data, private_data_len, ..param } };
    }

    fn show_service(&mut self, ah_attr: AhAttr, qp_num: u32, qkey: u32, data: &[u8], room: usize) {
        let (private_data, private_data_len) = self.keep(data, room);
        self.event.param = Param { ud: UdParam { private_data, private_data_len, ah_attr, qp_num, qkey } };
    }
}

/// The next event of a channel; waits for it if the program has not made the descriptor non-blocking.
///
/// # Safety
/// `channel` must be the program's.
pub unsafe fn next(channel: *mut EventChannel) -> Result<*mut CmEvent, Errno> {
    // SAFETY: the caller's promise.
    let of = unsafe { channel::object(channel) };
    loop {
        of.wait()?;
        // Another thread may have been faster, or the event's end be gone.
        let Some((taken, asked)) = take(of.queue)? else { continue };
        // SAFETY: the end lives until the event is acknowledged.
        let about = unsafe { &*taken.id.0 };
        match digest(about, taken, asked) {
            Some(event) => return Ok(Box::into_raw(event).cast()),
            None => about.reported.acknowledge(),
        }
    }
}

/// A new end, and what its peer asks for.
struct Newcomer {
    id: *mut IdObject,
    asked: Asked,
}

/// Takes an event; for a request makes what the program will hold of the new end.
fn take(queue: Token) -> Result<Option<(Taken, Option<Newcomer>)>, Errno> {
    let mut world = world()?;
    let Some(taken) = world.take(queue) else { return Ok(None) };
    let Notice::Asked { end: token, .. } = taken.notice else { return Ok(Some((taken, None))) };
    // SAFETY: the listener lives until the event is acknowledged.
    let listener = unsafe { &*taken.id.0 };
    let end = world.end(token)?;
    let Some(asked) = end.asked.take() else { return Ok(None) };
    // SAFETY: fields that are set when an identifier is made, or migrated by its user.
    let (channel, context, ps, qp_type) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps, (*c).qp_type)
    };
    let space = PortSpace::of(ps).ok_or(libc::EINVAL)?;
    let id = Box::into_raw(id::make(token, channel, context, space, qp_type));
    end.id = Some(Id(id));
    Ok(Some((taken, Some(Newcomer { id, asked }))))
}

/// The event as the program sees it, after what it leads to; none if it is of no interest any more.
fn digest(about: &IdObject, taken: Taken, newcomer: Option<Newcomer>) -> Option<Box<EventObject>> {
    let plain = |event, status| Some(EventObject::new(taken.id.0, event, status));
    match taken.notice {
        Notice::AddressResolved => plain(kind::ADDR_RESOLVED, 0),
        Notice::AddressError(number) => plain(kind::ADDR_ERROR, -number),
        Notice::RouteResolved => plain(kind::ROUTE_RESOLVED, 0),
        Notice::Asked { .. } => newcomer.and_then(|newcomer| introduce(about, &newcomer)),
        Notice::Connection(Event::Response(reply)) => Some(respond(about, &reply)),
        Notice::Connection(Event::Rejected(rejection)) => refuse(about, &rejection),
        Notice::Connection(Event::Established) => plain(kind::ESTABLISHED, 0),
        Notice::Connection(Event::Disconnected) if about.own().has_failed => None,
        Notice::Connection(Event::Disconnected) => plain(kind::DISCONNECTED, 0),
        Notice::Connection(Event::Service(reply)) => Some(serve(about, &reply)),
        Notice::Connection(Event::Unreachable) => plain(kind::UNREACHABLE, -libc::ETIMEDOUT),
        Notice::Connection(Event::TimewaitExit) => plain(kind::TIMEWAIT_EXIT, 0),
    }
}

/// A request: a new end, with the device, addresses and what the peer said.
fn introduce(listener: &IdObject, newcomer: &Newcomer) -> Option<Box<EventObject>> {
    // SAFETY: made by `take`; its only user is this thread until the program hears of it.
    let new = unsafe { &*newcomer.id };
    if let Err(number) = new.attach() {
        tracing::debug!("a request without a device: error {number}");
    }
    let mut event = EventObject::new(newcomer.id, kind::CONNECT_REQUEST, 0);
    event.counted_on = ptr::from_ref(listener).cast_mut();
    event.event.listen_id = listener.c();
    let mut own = new.own();
    own.stage = Stage::Connecting;
    (own.tos, own.ack_timeout) = {
        let of = listener.own();
        (of.tos, of.ack_timeout)
    };
    let (from, to) = match &newcomer.asked {
        Asked::Connection(Request { from, to, .. }) | Asked::Service(ServiceRequest { from, to, .. }) => {
            (*from, *to)
        }
    };
    new.show_local(&mut own, to);
    new.show_remote(&mut own, from);
    match &newcomer.asked {
        Asked::Connection(request) => {
            own.peer = Some(asker(request));
            own.remote_ece = request.ece;
            event.show_connection(
                ConnParam {
                    responder_resources: request.terms.initiator_depth,
                    initiator_depth: request.terms.responder_resources,
                    flow_control: request.terms.flow_control.into(),
                    retry_count: request.retry_count,
                    rnr_retry_count: request.terms.rnr_retry_count,
                    srq: request.terms.srq.into(),
                    qp_num: request.qp.qp_num,
                    ..no_param()
                },
                &request.private_data,
                private_data::REQ_BYTES_MAX,
            );
        }
        Asked::Service(request) => {
            let room = private_data::SIDR_REQ_BYTES_MAX;
            event.show_service(path_to(&[0; 16], 0), 0, 0, &request.private_data, room);
        }
    }
    drop(own);
    if listener.own().is_sync {
        // SAFETY: ours until the program hears of it.
        if let Err(number) = unsafe { migrate::to_own_channel(new.c()) } {
            event.event.status = -number;
        }
    }
    Some(event)
}

fn asker(request: &Request) -> Peer {
    Peer {
        qp: request.qp,
        mtu: request.mtu,
        retry_count: request.retry_count,
        rnr_retry_count: request.terms.rnr_retry_count,
        ack_timeout: request.ack_timeout,
        reads_in: request.terms.initiator_depth,
        reads_out: request.terms.responder_resources,
    }
}

fn no_param() -> ConnParam {
    ConnParam {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    }
}

/// The peer accepts: an end with a queue pair becomes ready and says so; one without asks its program
/// (man `rdma_establish`).
fn respond(about: &IdObject, reply: &Reply) -> Box<EventObject> {
    {
        let mut own = about.own();
        let (mtu, retry_count, ack_timeout) = own
            .peer
            .map_or((5, 7, own.ack_timeout), |asked| (asked.mtu, asked.retry_count, asked.ack_timeout));
        own.peer = Some(Peer {
            qp: reply.qp,
            mtu,
            retry_count,
            rnr_retry_count: reply.terms.rnr_retry_count,
            ack_timeout,
            reads_in: reply.terms.initiator_depth,
            reads_out: reply.terms.responder_resources,
        });
        own.remote_ece = reply.ece;
    }
    let id = ptr::from_ref(about).cast_mut();
    // SAFETY: the program's own field.
    let has_qp = unsafe { !(*about.c()).qp.is_null() };
    let mut event = if has_qp {
        match become_ready(about) {
            Ok(()) => EventObject::new(id, kind::ESTABLISHED, 0),
            Err(number) => {
                about.own().has_failed = true;
                EventObject::new(id, kind::CONNECT_ERROR, -number)
            }
        }
    } else {
        EventObject::new(id, kind::CONNECT_RESPONSE, 0)
    };
    event.show_connection(
        ConnParam {
            responder_resources: reply.terms.initiator_depth,
            initiator_depth: reply.terms.responder_resources,
            flow_control: reply.terms.flow_control.into(),
            rnr_retry_count: reply.terms.rnr_retry_count,
            srq: reply.terms.srq.into(),
            qp_num: reply.qp.qp_num,
            ..no_param()
        },
        &reply.private_data,
        private_data::REP_BYTES_MAX,
    );
    event
}

/// Brings the queue pair to life and tells the peer, or refuses.
fn become_ready(about: &IdObject) -> Result<(), Errno> {
    // SAFETY: the program's queue pair, which it does not destroy while it waits for this event.
    let readied = unsafe { qp::to_ready(about, None, None) };
    let mut world = world()?;
    let Some(connection) = &mut world.end(about.token)?.connection else { return Err(libc::ENOTCONN) };
    let message = match readied {
        Ok(()) => connection.ready().map_err(|_| libc::ENOTCONN)?,
        Err(_) => connection.reject(Vec::new()).ok(),
    };
    world.follow(about.token, farcall_cm::Step { say: message, event: None });
    readied
}

/// The peer refuses, or is gone before there was a connection.
fn refuse(about: &IdObject, rejection: &Rejection) -> Option<Box<EventObject>> {
    if about.own().has_failed {
        return None;
    }
    // SAFETY: the program's queue pair, if it has one.
    if let Err(number) = unsafe { qp::to_error(about) } {
        tracing::debug!("a refused queue pair stays as it is: error {number}");
    }
    let id = ptr::from_ref(about).cast_mut();
    let mut event = EventObject::new(id, kind::REJECTED, rejection.reason.into());
    event.show_connection(no_param(), &rejection.private_data, private_data::REJ_BYTES_MAX);
    Some(event)
}

/// A queue pair that serves datagrams, or why there is none.
fn serve(about: &IdObject, reply: &ServiceReply) -> Box<EventObject> {
    let id = ptr::from_ref(about).cast_mut();
    let (event, qkey) = match reply.status {
        reason::SIDR_SUCCESS => (kind::ESTABLISHED, reply.qkey),
        _ => (kind::UNREACHABLE, UDP_QKEY),
    };
    let mut event = EventObject::new(id, event, reply.status.into());
    let path = path_to(&reply.gid, about.own().tos);
    event.show_service(path, reply.qp_num, qkey, &reply.private_data, private_data::SIDR_REP_BYTES_MAX);
    event
}

/// What an event means for the call that waited for it.
///
/// # Safety
/// `event` must be one of ours that is not acknowledged.
pub unsafe fn outcome(event: *mut CmEvent) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (event, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(()),
        _ if event == kind::REJECTED => Err(libc::ECONNREFUSED),
        number => Err(number.abs()),
    }
}

/// # Safety
/// `event` must be one of ours; the program does not use it any more.
pub unsafe fn acknowledge(event: *mut CmEvent) {
    // SAFETY: the caller's promise; the end that it counts on waits for this.
    unsafe {
        let event = Box::from_raw(event.cast::<EventObject>());
        (*event.counted_on).reported.acknowledge();
    }
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_get_cm_event`.
        fn rdma_get_cm_event(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int {
            if channel.is_null() || event.is_null() {
                return answer(Err(libc::EINVAL));
            }
            // SAFETY: the caller's channel and variable.
            answer(unsafe { next(channel).map(|next| *event = next) })
        }

        /// `man rdma_ack_cm_event`.
        fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
            if event.is_null() {
                return answer(Err(libc::EINVAL));
            }
            // SAFETY: the caller's event.
            unsafe { acknowledge(event) };
            0
        }

        /// `man rdma_notify`: a peer is using the connection before its RTU is here.
        fn rdma_notify(id: *mut CmId, event: u32) -> c_int {
            const COMM_EST: u32 = 4;
            if event != COMM_EST {
                return answer(Err(libc::EINVAL));
            }
            // SAFETY: the caller's identifier.
            let token = unsafe { id::object(id) }.token;
            answer(world().and_then(|mut world| {
                let connection = world.end(token)?.connection.as_mut().ok_or(libc::EINVAL)?;
                let step = connection.in_use().map_err(|_| libc::EISCONN)?;
                world.follow(token, step);
                Ok(())
            }))
        }
    }
}
