//! Queue pair attributes negotiated by both endpoints (man `rdma_init_qp_attr`).

use std::ffi::c_int;

use farcall_layout::rdmacm::{CmId, UDP_QKEY};
use farcall_layout::{AhAttr, GlobalRoute, QpAttr, mask};

use crate::device::{self, NicDevice};
use crate::errno::{Errno, invalid, to_return_value};
use crate::id::{self, CmIdObject};
use crate::id_state::{CmIdState, PeerParams};
use crate::symbols::export;

/// `IBV_QPS_INIT`.
pub const INIT: u32 = 1;
/// `IBV_QPS_RTR`.
pub const RTR: u32 = 2;
/// `IBV_QPS_RTS`.
pub const RTS: u32 = 3;
/// `IBV_QPS_ERR`.
pub const ERR: u32 = 6;

/// `IBV_ACCESS_LOCAL_WRITE`, `REMOTE_WRITE`, `REMOTE_READ`, `REMOTE_ATOMIC`: the access of a peer is limited by the
/// regions.
const ACCESS: u32 = 1 | 2 | 4 | 8;
/// 0.64 ms: how long a peer waits if it finds no receive.
const RNR_TIMER: u8 = 12;
/// Nothing is routed, but the hop limit of a global route must not be zero.
const HOPS: u8 = 64;

/// Returns the path to a port.
pub fn path_to(gid: &[u8; 16], traffic_class: u8) -> AhAttr {
    let grh = GlobalRoute { dgid: *gid, hop_limit: HOPS, traffic_class, ..GlobalRoute::default() };
    AhAttr { grh, is_global: 1, port_num: device::PORT, ..AhAttr::default() }
}

/// Returns attributes with only a state.
pub fn state(state: u32) -> QpAttr {
    QpAttr { qp_state: state, ..QpAttr::default() }
}

/// Returns the attributes and their mask for moving an endpoint's queue pair to a state.
///
/// # Errors
/// Returns `EINVAL` for a state that needs a peer while there is none, and for other states.
pub fn towards(wanted: u32, of: &CmIdObject) -> Result<(QpAttr, c_int), Errno> {
    let mut attr = state(wanted);
    let id_state = of.lock_state();
    let nic = device::device()?;
    let also = match (wanted, of.is_datagram()) {
        (INIT, is_datagram) => {
            attr.port_num = device::PORT;
            mask::PKEY_INDEX | mask::PORT | init(&mut attr, is_datagram)
        }
        (RTR, true) => 0,
        (RTS, true) => {
            attr.sq_psn = id_state.psn();
            mask::SQ_PSN
        }
        (RTR, false) => ready_to_receive(&mut attr, &id_state, &id_state.peer()?, nic),
        (RTS, false) => ready_to_send(&mut attr, &id_state.peer()?, nic),
        _ => return Err(invalid(format_args!("state {wanted}: there are INIT (1), RTR (2) and RTS (3)"))),
    };
    Ok((attr, mask::STATE | also))
}

fn init(attr: &mut QpAttr, is_datagram: bool) -> c_int {
    if is_datagram {
        attr.qkey = UDP_QKEY;
        return mask::QKEY;
    }
    attr.qp_access_flags = ACCESS as _;
    mask::ACCESS_FLAGS
}

fn ready_to_receive(attr: &mut QpAttr, id_state: &CmIdState, peer: &PeerParams, nic: &NicDevice) -> c_int {
    attr.ah_attr = path_to(&peer.gid, id_state.options.tos);
    attr.path_mtu = peer.mtu.min(nic.mtu).into();
    attr.dest_qp_num = peer.qp.qp_num;
    attr.rq_psn = id_state.psn();
    attr.max_dest_rd_atomic = peer.reads_in.min(nic.max_rd_atomic);
    attr.min_rnr_timer = RNR_TIMER;
    mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER
}

fn ready_to_send(attr: &mut QpAttr, peer: &PeerParams, nic: &NicDevice) -> c_int {
    // Each endpoint specifies the PSN with which the other one begins (IBA 12.7.31).
    attr.sq_psn = peer.qp.psn;
    attr.timeout = peer.ack_timeout;
    attr.retry_cnt = peer.retry_count;
    attr.rnr_retry = peer.rnr_retry_count;
    attr.max_rd_atomic = peer.reads_out.min(nic.max_rd_atomic);
    mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC
}

export! {
    "RDMACM_1.2" {
        /// `man rdma_init_qp_attr`: attributes for the state in the structure.
        fn rdma_init_qp_attr(id: *mut CmId, attr: *mut QpAttr, attr_mask: *mut c_int) -> c_int {
            // SAFETY: contract of `rdma_init_qp_attr` (man page): `id` is a live identifier, and the structure and the
            // variable are valid.
            to_return_value(unsafe {
                towards((*attr).qp_state, id::object(id)).map(|(filled, filled_mask)| {
                    attr.write(filled);
                    *attr_mask = filled_mask;
                })
            })
        }
    }
}
