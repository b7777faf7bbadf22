//! Requesting a connection, and ending it.

use std::ffi::{c_int, c_void};

use farcall_layout::rdmacm::{AS_MANY_AS_POSSIBLE, CmId, ConnParam};
use farcall_wire::cm::{
    Connection, ConnectionParams, IpRoute, QueuePair, Request, ServiceRequest, State, Step, private_data,
};

use crate::device::{self, NicDevice};
use crate::errno::{Errno, invalid, refused, to_return_value};
use crate::event::complete;
use crate::id::{self, CmIdObject};
use crate::id_state::{CmIdState, Stage};
use crate::qp;
use crate::service::connection_manager;
use crate::symbols::export;

/// Copies private data of a program, at most `max` bytes.
///
/// # Safety
/// `data` must point to `len` bytes.
pub unsafe fn bytes_of(data: *const c_void, len: u8, max: usize) -> Result<Vec<u8>, Errno> {
    let len = usize::from(len);
    if len == 0 || data.is_null() {
        return Ok(Vec::new());
    }
    if len > max {
        return Err(refused(libc::EINVAL, format_args!("{len} bytes of private data; at most {max}")));
    }
    // SAFETY: contract of this function: `data` has `len` bytes.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec())
}

/// Copies the private data of a call, at most `max` bytes; empty without parameters.
///
/// # Safety
/// The parameters must be valid by the call's man page.
pub unsafe fn data_of(param: Option<&ConnParam>, max: usize) -> Result<Vec<u8>, Errno> {
    // SAFETY: contract of this function: `private_data` has `private_data_len` bytes.
    param.map_or(Ok(Vec::new()), |param| unsafe { bytes_of(param.private_data, param.private_data_len, max) })
}

/// Returns the parameters that an endpoint offers or accepts.
pub fn params(
    param: Option<&ConnParam>,
    responder_resources: u8,
    initiator_depth: u8,
    srq: bool,
) -> ConnectionParams {
    ConnectionParams {
        responder_resources,
        initiator_depth,
        flow_control: param.is_some_and(|param| param.flow_control != 0),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count.min(7)),
        srq,
    }
}

/// Returns the queue pair of an endpoint: that of the identifier, or one that the program created separately and names
/// in `param`.
///
/// # Safety
/// The endpoint's queue pair, if there is one, must not be destroyed during the call.
pub unsafe fn own_qp(
    of: &CmIdObject,
    id_state: &CmIdState,
    param: Option<&ConnParam>,
) -> Result<(QueuePair, bool), Errno> {
    // SAFETY: `of.c()` points into `of`, which is live. Contract of this function: the queue pair in its field is null
    // or live.
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
    Ok((QueuePair { qp_num, psn: id_state.psn() }, srq))
}

/// Returns the number of READs and atomics that the program specifies, or the device's maximum.
fn reads(requested: Option<u8>, nic: &NicDevice) -> u8 {
    requested
        .filter(|requested| *requested != AS_MANY_AS_POSSIBLE)
        .unwrap_or(nic.max_rd_atomic)
        .min(nic.max_rd_atomic)
}

/// Returns the addresses of an endpoint's request.
fn route(of: &CmIdObject, id_state: &CmIdState) -> Result<IpRoute, Errno> {
    let (from, to) = id_state.addresses()?;
    Ok(IpRoute { port_space: of.space, from, to })
}

/// # Safety
/// The same as for `rdma_connect` (man page).
unsafe fn request(
    of: &CmIdObject,
    id_state: &mut CmIdState,
    param: Option<&ConnParam>,
) -> Result<Request, Errno> {
    let nic = device::device()?;
    // SAFETY: contract of this function: `param` is valid by `man rdma_connect`, and the program does not destroy the
    // endpoint's queue pair during the call.
    let ((qp, srq), data) = unsafe {
        let data = data_of(param, private_data::REQ_BYTES_MAX)?;
        (own_qp(of, id_state, param)?, data)
    };
    let data = if data.is_empty() { id_state.take_connect_data() } else { data };
    if data.len() > private_data::REQ_BYTES_MAX {
        return Err(invalid("more private data than a request holds"));
    }
    let request = Request {
        route: route(of, id_state)?,
        qp,
        ca_guid: nic.ca_guid,
        gid: id_state.own_gid(nic.gid),
        peer_gid: of.resolved_gid(),
        // SAFETY: `of.c()` points into `of`, which is live; the field is set when the identifier is created.
        qp_type: unsafe { (*of.c()).qp_type } as u8,
        mtu: id_state.path_mtu(nic.mtu),
        retry_count: param.map_or(7, |param| param.retry_count.min(7)),
        ack_timeout: id_state.options.ack_timeout,
        params: params(
            param,
            reads(param.map(|param| param.responder_resources), nic),
            reads(param.map(|param| param.initiator_depth), nic),
            srq,
        ),
        ece: id_state.options.local_ece,
        private_data: data,
    };
    id_state.requests(&request);
    Ok(request)
}

/// # Safety
/// The same as for `rdma_connect` (man page).
unsafe fn connect(of: &CmIdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    let mut id_state = of.lock_state();
    id_state.require(Stage::RouteResolved)?;
    let (connection, message) = if of.is_datagram() {
        let max = private_data::SIDR_REQ_BYTES_MAX;
        let data = match param {
            // SAFETY: contract of this function: `param` is valid by `man rdma_connect`.
            Some(_) => unsafe { data_of(param, max)? },
            None => id_state.take_connect_data(),
        };
        Connection::resolve_service(ServiceRequest { route: route(of, &id_state)?, private_data: data })
    } else {
        // SAFETY: contract of this function, which is that of `request`.
        Connection::request(unsafe { request(of, &mut id_state, param)? })
    };
    id_state.enter(Stage::Connecting);
    drop(id_state);
    connection_manager()?.send_request(of.token, connection, message)
}

/// Ends a connection. Returns whether an event about its end will occur or is already queued.
fn disconnect(of: &CmIdObject) -> Result<bool, Errno> {
    if of.is_datagram() {
        return Err(invalid("datagrams have no connection"));
    }
    let mut manager = connection_manager()?;
    let connection = manager.end(of.token)?.connection().ok_or_else(|| invalid("there is no connection"))?;
    let message = connection.disconnect();
    let is_leaving = connection.state() == State::DreqSent;
    manager.report_disconnect(of.token);
    manager.apply_step(of.token, Step { message, event: None });
    Ok(is_leaving || manager.has_queued_event(of.token))
}

fn establish(of: &CmIdObject) -> Result<(), Errno> {
    connection_manager()?.step(of.token, Connection::ready)
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_connect`.
        fn rdma_connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
            // SAFETY: contract of `rdma_connect` (man page): `id` is a live identifier, and `param` is null or valid.
            to_return_value(unsafe { connect(id::object(id), param.as_ref()).and_then(|()| complete(id)) })
        }

        /// `man rdma_disconnect`: also flushes the queue pair's outstanding requests.
        fn rdma_disconnect(id: *mut CmId) -> c_int {
            // SAFETY: contract of `rdma_disconnect` (man page): `id` is a live identifier.
            to_return_value(unsafe {
                let of = id::object(id);
                let is_told = qp::to_error(of).and_then(|()| disconnect(of));
                is_told.and_then(|is_told| if is_told { complete(id) } else { Ok(()) })
            })
        }
    }
    "RDMACM_1.2" {
        /// `man rdma_establish`: for identifiers whose queue pair the program moves through its states itself.
        fn rdma_establish(id: *mut CmId) -> c_int {
            // SAFETY: contract of `rdma_establish` (man page): `id` is a live identifier.
            to_return_value(unsafe { if (*id).qp.is_null() { establish(id::object(id)) } else { Err(invalid("for identifiers without a queue pair")) } })
        }
    }
}
