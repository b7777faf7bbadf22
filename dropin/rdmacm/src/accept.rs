//! Accepting or rejecting requests for a connection, or for the queue pair of a datagram service.

use std::ffi::{c_int, c_void};

use farcall_layout::rdmacm::{AS_MANY_AS_POSSIBLE, CmId, ConnParam, UDP_QKEY};
use farcall_wire::cm::{Reply, State, private_data};

use crate::connect::{bytes_of, data_of, own_qp, params};
use crate::device;
use crate::errno::{Errno, invalid, to_return_value};
use crate::event::complete;
use crate::id::{self, CmIdObject};
use crate::qp;
use crate::service::connection_manager;
use crate::symbols::export;

/// # Safety
/// The same as for `rdma_accept` (man page).
unsafe fn serve(of: &CmIdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    // SAFETY: contract of this function: `param` is valid by `man rdma_accept`, and the program does not destroy the
    // endpoint's queue pair during the call.
    let (qp, data) = unsafe {
        let data = data_of(param, private_data::SIDR_REP_BYTES_MAX)?;
        (own_qp(of, &of.lock_state(), param)?.0, data)
    };
    connection_manager()?.step(of.token, |connection| connection.serve(qp.qp_num, UDP_QKEY, data).map(Some))
}

/// # Safety
/// The same as for `rdma_accept` (man page).
unsafe fn accept(of: &CmIdObject, param: Option<&ConnParam>) -> Result<(), Errno> {
    require_request(of)?;
    let (reply, reads_in, reads_out) = {
        let id_state = of.lock_state();
        let peer = id_state.peer()?;
        let nic = device::device()?;
        // Without a value from the program: as many as the peer requests, limited to the device's maximum.
        let requested = |requested: Option<u8>, wanted: u8| {
            requested
                .filter(|requested| *requested != AS_MANY_AS_POSSIBLE)
                .unwrap_or(wanted)
                .min(nic.max_rd_atomic)
        };
        let reads_in = requested(param.map(|param| param.responder_resources), peer.reads_in);
        let reads_out = requested(param.map(|param| param.initiator_depth), peer.reads_out);
        // SAFETY: contract of this function: `param` is valid by `man rdma_accept`, and the program does not destroy
        // the endpoint's queue pair during the call.
        let ((qp, srq), data) = unsafe {
            let data = data_of(param, private_data::REP_BYTES_MAX)?;
            (own_qp(of, &id_state, param)?, data)
        };
        let params = params(param, reads_in, reads_out, srq);
        (
            Reply { qp, ca_guid: nic.ca_guid, params, ece: id_state.options.local_ece, private_data: data },
            reads_in,
            reads_out,
        )
    };
    // Before the peer may use the queue pair.
    // SAFETY: contract of this function: the program does not destroy the queue pair during the call.
    unsafe { qp::to_ready(of, Some(reads_in), Some(reads_out))? };
    connection_manager()?.step(of.token, |connection| connection.accept(reply).map(Some))
}

fn require_request(of: &CmIdObject) -> Result<(), Errno> {
    let mut manager = connection_manager()?;
    match manager.end(of.token)?.connection().map(|connection| connection.state()) {
        Some(State::ReqReceived) => Ok(()),
        _ => Err(invalid("no connection request is pending, or it was answered")),
    }
}

/// # Safety
/// `data` must point to `len` bytes.
unsafe fn reject(of: &CmIdObject, data: *const c_void, len: u8) -> Result<(), Errno> {
    let max = if of.is_datagram() { private_data::SIDR_REP_BYTES_MAX } else { private_data::REJ_BYTES_MAX };
    // SAFETY: contract of this function: `data` has `len` bytes.
    let data = unsafe { bytes_of(data, len, max)? };
    connection_manager()?.step(of.token, |connection| connection.reject(data).map(Some))
}

export! {
    "RDMACM_1.0" {
        /// `man rdma_accept`.
        fn rdma_accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
            // SAFETY: contract of `rdma_accept` (man page): `id` is a live identifier of this library, and `param` is
            // null or valid.
            to_return_value(unsafe {
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
            // SAFETY: contract of `rdma_reject` (man page): `id` is a live identifier, and `private_data` has
            // `len_bytes` bytes.
            to_return_value(unsafe { reject(id::object(id), private_data, len_bytes) })
        }
    }
    "RDMACM_1.3" {
        /// `man rdma_set_local_ece`: a rejection for the options of enhanced connection establishment. This library
        /// never rejects for that reason.
        fn rdma_reject_ece(id: *mut CmId, private_data: *const c_void, len_bytes: u8) -> c_int {
            // SAFETY: contract of `rdma_reject` (man page): `id` is a live identifier, and `private_data` has
            // `len_bytes` bytes.
            to_return_value(unsafe { reject(id::object(id), private_data, len_bytes) })
        }
    }
}
