//! Answering who asks for a connection or for the queue pair that serves datagrams.

use std::ffi::{c_int, c_void};

use farcall_cm::{Reply, ServiceReply, State, Step, Terms, private_data, reason};
use farcall_ibv::abi::cm::{AS_MANY_AS_POSSIBLE, CmId, ConnParam, UDP_QKEY};

use crate::channel::complete;
use crate::connect::{bytes_of, own_qp};
use crate::device;
use crate::errno::{Errno, answer};
use crate::id::{self, IdObject};
use crate::qp;
use crate::service::world;
use crate::symbols::export;

/// # Safety
/// As `man rdma_accept` says.
unsafe fn serve(of: &IdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (qp, data) = unsafe {
        let max = private_data::SIDR_REP_BYTES_MAX;
        let data = param
            .map_or(Ok(Vec::new()), |param| bytes_of(param.private_data, param.private_data_len, max))?;
        (own_qp(of, &of.own(), param)?.0, data)
    };
    let reply = ServiceReply {
        status: reason::SIDR_SUCCESS,
        qp_num: qp.qp_num,
        qkey: UDP_QKEY,
        gid: qp.gid,
        private_data: data,
    };
    let mut world = world()?;
    let connection = world.end(of.token)?.connection.as_mut().ok_or(libc::EINVAL)?;
    let message = connection.serve(reply).map_err(|_| libc::EINVAL)?;
    world.follow(of.token, Step { say: Some(message), event: None });
    Ok(())
}

/// # Safety
/// As `man rdma_accept` says.
unsafe fn accept(of: &IdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    require_asked(of)?;
    let (reply, reads_in, reads_out) = {
        let own = of.own();
        let peer = own.peer.ok_or(libc::EINVAL)?;
        let nic = device::device()?;
        // Without a word as many as the peer wants, and at most what the device can.
        let said = |said: Option<u8>, wanted: u8| {
            said.filter(|said| *said != AS_MANY_AS_POSSIBLE).unwrap_or(wanted).min(nic.max_rd_atomic)
        };
        let reads_in = said(param.map(|param| param.responder_resources), peer.reads_in);
        let reads_out = said(param.map(|param| param.initiator_depth), peer.reads_out);
        // SAFETY: the caller's promise.
        let ((qp, srq), data) = unsafe {
            let max = private_data::REP_BYTES_MAX;
            let data = param
                .map_or(Ok(Vec::new()), |param| bytes_of(param.private_data, param.private_data_len, max))?;
            (own_qp(of, &own, param)?, data)
        };
        let terms = Terms {
            responder_resources: reads_in,
            initiator_depth: reads_out,
            flow_control: param.is_some_and(|param| param.flow_control != 0),
            rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count.min(7)),
            srq,
        };
        (Reply { qp, terms, ece: own.local_ece, private_data: data }, reads_in, reads_out)
    };
    // Before the peer may use it.
    // SAFETY: the program's queue pair, which it does not destroy meanwhile.
    unsafe { qp::to_ready(of, Some(reads_in), Some(reads_out))? };
    let mut world = world()?;
    let connection = world.end(of.token)?.connection.as_mut().ok_or(libc::EINVAL)?;
    let message = connection.accept(reply).map_err(|_| libc::EINVAL)?;
    world.follow(of.token, Step { say: Some(message), event: None });
    Ok(())
}

fn require_asked(of: &IdObject) -> Result<(), Errno> {
    let mut world = world()?;
    match world.end(of.token)?.connection.as_ref().map(farcall_cm::Connection::state) {
        Some(State::ReqReceived) => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

/// # Safety
/// `data` must have `len` bytes.
unsafe fn reject(of: &IdObject, data: *const c_void, len: u8) -> Result<(), Errno> {
    let max = if of.is_datagram() { private_data::SIDR_REP_BYTES_MAX } else { private_data::REJ_BYTES_MAX };
    // SAFETY: the caller's promise.
    let data = unsafe { bytes_of(data, len, max)? };
    let mut world = world()?;
    let connection = world.end(of.token)?.connection.as_mut().ok_or(libc::EINVAL)?;
    let message = connection.reject(data).map_err(|_| libc::EINVAL)?;
    world.follow(of.token, Step { say: Some(message), event: None });
    Ok(())
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_accept`.
        fn rdma_accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
            // SAFETY: the caller's identifier and structure.
            answer(unsafe {
                let of = id::object(id);
                if of.is_datagram() {
                    serve(of, param.as_ref())
                } else {
                    accept(of, param.as_ref()).and_then(|()| complete(id))
                }
            })
        }

        /// `man rdma_reject`.
        fn rdma_reject(id: *mut CmId, private_data: *const c_void, len_bytes: u8) -> c_int {
            // SAFETY: the caller's identifier and bytes.
            answer(unsafe { reject(id::object(id), private_data, len_bytes) })
        }
    }
    "RDMACM_1.3" {
        /// `man rdma_set_local_ece`: a refusal for the options of enhanced connection establishment; there are none to refuse here.
        fn rdma_reject_ece(id: *mut CmId, private_data: *const c_void, len_bytes: u8) -> c_int {
            // SAFETY: the caller's identifier and bytes.
            answer(unsafe { reject(id::object(id), private_data, len_bytes) })
        }
    }
}
