//! Asking for a connection, and ending it.

use std::ffi::{c_int, c_void};

use farcall_cm::{Connection, QueuePair, Request, ServiceRequest, State, Step, Terms, private_data};
use farcall_ibv::abi::cm::{AS_MANY_AS_POSSIBLE, CmId, ConnParam};

use crate::channel::complete;
use crate::device::{self, NicDevice};
use crate::errno::{Errno, answer};
use crate::id::{self, IdObject, Own, Peer, Stage};
use crate::qp;
use crate::service::world;
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
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec())
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
    let gid = device::device()?.gid;
    // SAFETY: the program's field, and the caller's promise.
    let (qp_num, srq) = unsafe {
        let qp = (*of.c()).qp;
        if qp.is_null() {
            let param = param.ok_or(libc::EINVAL)?;
            (param.qp_num, param.srq != 0)
        } else {
            ((*qp).qp_num, !(*qp).srq.is_null())
        }
    };
    Ok((QueuePair { qp_num, psn: own.psn, gid }, srq))
}

/// As many READs and atomics as the program says, or the device can.
fn reads(said: Option<u8>, nic: &NicDevice) -> u8 {
    said.filter(|said| *said != AS_MANY_AS_POSSIBLE).unwrap_or(nic.max_rd_atomic).min(nic.max_rd_atomic)
}

/// # Safety
/// As `man rdma_connect` says.
unsafe fn request(of: &IdObject, own: &mut Own, param: Option<&ConnParam>) -> Result<Request, Errno> {
    let nic = device::device()?;
    // SAFETY: the caller's promise.
    let ((qp, srq), data) = unsafe {
        let data = match param {
            Some(param) => bytes_of(param.private_data, param.private_data_len, private_data::REQ_BYTES_MAX)?,
            None => Vec::new(),
        };
        (own_qp(of, own, param)?, data)
    };
    let data = if data.is_empty() { std::mem::take(&mut own.connect_data) } else { data };
    if data.len() > private_data::REQ_BYTES_MAX {
        return Err(libc::EINVAL);
    }
    let request = Request {
        port_space: own.space,
        from: own.local.ok_or(libc::EINVAL)?,
        to: own.remote.ok_or(libc::EINVAL)?,
        qp,
        // SAFETY: set when the identifier was made.
        qp_type: unsafe { (*of.c()).qp_type } as u8,
        mtu: nic.mtu,
        retry_count: param.map_or(7, |param| param.retry_count.min(7)),
        ack_timeout: own.ack_timeout,
        terms: Terms {
            responder_resources: reads(param.map(|param| param.responder_resources), nic),
            initiator_depth: reads(param.map(|param| param.initiator_depth), nic),
            flow_control: param.is_some_and(|param| param.flow_control != 0),
            rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count.min(7)),
            srq,
        },
        ece: own.local_ece,
        private_data: data,
    };
    // Until the reply says more, what we asked for is what both do.
    own.peer = Some(Peer {
        qp: QueuePair::default(),
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
    if own.stage != Stage::RouteResolved {
        return Err(libc::EINVAL);
    }
    let (connection, message) = if of.is_datagram() {
        let max = private_data::SIDR_REQ_BYTES_MAX;
        let data = match param {
            // SAFETY: the caller's promise.
            Some(param) => unsafe { bytes_of(param.private_data, param.private_data_len, max)? },
            None => std::mem::take(&mut own.connect_data),
        };
        Connection::look_up(ServiceRequest {
            port_space: own.space,
            from: own.local.ok_or(libc::EINVAL)?,
            to: own.remote.ok_or(libc::EINVAL)?,
            private_data: data,
        })
    } else {
        // SAFETY: the caller's promise.
        Connection::ask(unsafe { request(of, &mut own, param)? })
    };
    own.stage = Stage::Connecting;
    drop(own);
    world()?.ask(of.token, connection, message)
}

/// Ends a connection; whether an event will say that it is over, or waits to be heard.
fn disconnect(of: &IdObject) -> Result<bool, Errno> {
    if of.is_datagram() {
        return Err(libc::EINVAL);
    }
    let mut world = world()?;
    let connection = world.end(of.token)?.connection.as_mut().ok_or(libc::EINVAL)?;
    let message = connection.disconnect();
    let is_leaving = connection.state() == State::DreqSent;
    world.bid_farewell(of.token);
    world.follow(of.token, Step { say: message, event: None });
    Ok(is_leaving || world.has_notice(of.token))
}

fn establish(of: &IdObject) -> Result<(), Errno> {
    let mut world = world()?;
    let connection = world.end(of.token)?.connection.as_mut().ok_or(libc::EINVAL)?;
    let message = connection.ready().map_err(|_| libc::EINVAL)?;
    world.follow(of.token, Step { say: message, event: None });
    Ok(())
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
                qp::to_error(of).and_then(|()| disconnect(of)).and_then(|is_told| if is_told { complete(id) } else { Ok(()) })
            })
        }
    }
    "RDMACM_1.2" {
        /// `man rdma_establish`: for ends whose queue pair the program moves itself.
        fn rdma_establish(id: *mut CmId) -> c_int {
            // SAFETY: the caller's identifier.
            answer(unsafe { if (*id).qp.is_null() { establish(id::object(id)) } else { Err(libc::EINVAL) } })
        }
    }
}
