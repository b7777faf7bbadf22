//! Asking for a connection, and ending it.

use std::ffi::{c_int, c_void};

use farcall_layout::rdmacm::{AS_MANY_AS_POSSIBLE, CmId, ConnParam};
use farcall_wire::cm::{
    Connection, IpRoute, QueuePair, Request, ServiceRequest, State, Step, Terms, private_data,
};

use crate::abroad::mapped;
use crate::bind::FAR_MTU;
use crate::channel::complete;
use crate::device::{self, NicDevice};
use crate::errno::{Errno, answer, invalid, refused};
use crate::id::{self, IdObject, Own, PeerTerms, Stage};
use crate::qp;
use crate::service::connection_manager;
use crate::symbols::export;

/// The bytes of a program, at most `max`.
///
/// # Safety
/// `data` must have `len` bytes.
pub unsafe fn bytes_of(data: *const c_void, len: u8, max: usize) -> Result<Vec<u8>, Errno> {
    let len = usize::from(len);
    if len == 0 || data.is_null() {
        return Ok(Vec::new());
    }
    if len > max {
        return Err(refused(libc::EINVAL, format_args!("{len} bytes of private data; at most {max}")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec())
}

/// The private data of a call, at most `max` bytes; none without parameters.
///
/// # Safety
/// The parameters must be as the call's man page says.
pub unsafe fn data_of(param: Option<&ConnParam>, max: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: the caller's promise.
    param.map_or(Ok(Vec::new()), |param| unsafe { bytes_of(param.private_data, param.private_data_len, max) })
}

/// What an end offers or accepts.
pub fn terms(param: Option<&ConnParam>, responder_resources: u8, initiator_depth: u8, srq: bool) -> Terms {
    Terms {
        responder_resources,
        initiator_depth,
        flow_control: param.is_some_and(|param| param.flow_control != 0),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count.min(7)),
        srq,
    }
}

/// The queue pair of an end: its own, or one that the program has beside it.
///
/// # Safety
/// The end's queue pair, if there is one, must live.
pub unsafe fn own_qp(
    of: &IdObject,
    own: &Own,
    param: Option<&ConnParam>,
) -> Result<(QueuePair, bool), Errno> {
    // SAFETY: the program's field, and the caller's promise.
    let (qp_num, srq) = unsafe {
        let qp = (*of.c()).qp;
        if qp.is_null() {
            let param = param
                .ok_or_else(|| invalid("the identifier has no queue pair, and no parameters name one"))?;
            (param.qp_num, param.srq != 0)
        } else {
            ((*qp).qp_num, !(*qp).srq.is_null())
        }
    };
    Ok((QueuePair { qp_num, psn: own.psn }, srq))
}

/// As many READs and atomics as the program says, or the device can.
fn reads(said: Option<u8>, nic: &NicDevice) -> u8 {
    said.filter(|said| *said != AS_MANY_AS_POSSIBLE).unwrap_or(nic.max_rd_atomic).min(nic.max_rd_atomic)
}

/// The address of an end's port: to other hosts it is an IP address.
fn own_gid(own: &Own, nic: &NicDevice) -> [u8; 16] {
    own.local.filter(|_| own.is_far).map_or(nic.gid, |local| mapped(&local.ip()).octets())
}

/// From where an end asks whom.
fn route(of: &IdObject, own: &Own) -> Result<IpRoute, Errno> {
    let (from, to) = own.addresses()?;
    Ok(IpRoute { port_space: of.space, from, to })
}

/// # Safety
/// As `man rdma_connect` says.
unsafe fn request(of: &IdObject, own: &mut Own, param: Option<&ConnParam>) -> Result<Request, Errno> {
    let nic = device::device()?;
    // SAFETY: the caller's promise.
    let ((qp, srq), data) = unsafe {
        let data = data_of(param, private_data::REQ_BYTES_MAX)?;
        (own_qp(of, own, param)?, data)
    };
    let data = if data.is_empty() { std::mem::take(&mut own.connect_data) } else { data };
    if data.len() > private_data::REQ_BYTES_MAX {
        return Err(invalid("more private data than a request holds"));
    }
    let request = Request {
        route: route(of, own)?,
        qp,
        ca_guid: nic.ca_guid,
        gid: own_gid(own, nic),
        peer_gid: of.resolved_gid(),
        // SAFETY: set when the identifier was made.
        qp_type: unsafe { (*of.c()).qp_type } as u8,
        mtu: if own.is_far { nic.mtu.min(FAR_MTU) } else { nic.mtu },
        retry_count: param.map_or(7, |param| param.retry_count.min(7)),
        ack_timeout: own.ack_timeout,
        terms: terms(
            param,
            reads(param.map(|param| param.responder_resources), nic),
            reads(param.map(|param| param.initiator_depth), nic),
            srq,
        ),
        ece: own.local_ece,
        private_data: data,
    };
    // Until the reply says more, what we asked for is what both do.
    own.peer = Some(PeerTerms {
        qp: QueuePair::default(),
        gid: request.peer_gid,
        mtu: request.mtu,
        retry_count: request.retry_count,
        rnr_retry_count: request.terms.rnr_retry_count,
        ack_timeout: request.ack_timeout,
        reads_in: request.terms.responder_resources,
        reads_out: request.terms.initiator_depth,
    });
    Ok(request)
}

/// # Safety
/// As `man rdma_connect` says.
unsafe fn connect(of: &IdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    let mut own = of.own();
    own.require(Stage::RouteResolved)?;
    let (connection, message) = if of.is_datagram() {
        let max = private_data::SIDR_REQ_BYTES_MAX;
        let data = match param {
            // SAFETY: the caller's promise.
            Some(_) => unsafe { data_of(param, max)? },
            None => std::mem::take(&mut own.connect_data),
        };
        Connection::resolve_service(ServiceRequest { route: route(of, &own)?, private_data: data })
    } else {
        // SAFETY: the caller's promise.
        Connection::request(unsafe { request(of, &mut own, param)? })
    };
    own.stage = Stage::Connecting;
    drop(own);
    connection_manager()?.send_request(of.token, connection, message)
}

/// Ends a connection; whether an event about its end will come or waits to be taken.
fn disconnect(of: &IdObject) -> Result<bool, Errno> {
    if of.is_datagram() {
        return Err(invalid("datagrams have no connection"));
    }
    let mut manager = connection_manager()?;
    let connection =
        manager.end(of.token)?.connection.as_mut().ok_or_else(|| invalid("there is no connection"))?;
    let message = connection.disconnect();
    let is_leaving = connection.state() == State::DreqSent;
    manager.report_disconnect(of.token);
    manager.take_step(of.token, Step { message, event: None });
    Ok(is_leaving || manager.has_notice(of.token))
}

fn establish(of: &IdObject) -> Result<(), Errno> {
    connection_manager()?.step(of.token, Connection::ready)
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_connect`.
        fn rdma_connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
            // SAFETY: the caller's identifier and structure.
            answer(unsafe { connect(id::object(id), param.as_ref()).and_then(|()| complete(id)) })
        }

        /// `man rdma_disconnect`: also ends what the queue pair has under way.
        fn rdma_disconnect(id: *mut CmId) -> c_int {
            // SAFETY: the caller's identifier.
            answer(unsafe {
                let of = id::object(id);
                let is_told = qp::to_error(of).and_then(|()| disconnect(of));
                is_told.and_then(|is_told| if is_told { complete(id) } else { Ok(()) })
            })
        }
    }
    "RDMACM_1.2" {
        /// `man rdma_establish`: for ends whose queue pair the program moves itself.
        fn rdma_establish(id: *mut CmId) -> c_int {
            // SAFETY: the caller's identifier.
            answer(unsafe { if (*id).qp.is_null() { establish(id::object(id)) } else { Err(invalid("for identifiers without a queue pair")) } })
        }
    }
}
