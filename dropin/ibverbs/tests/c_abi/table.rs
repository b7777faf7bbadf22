//! Transitions as implemented by every device of rdma-core, and the attributes that `ibv_query_qp` must return.

use std::ffi::c_int;

use farcall_layout::{QpAttr, mask};
use farcall_verbs::{QpState, QpType, Transition};

use crate::world::{RC, Rng, UC, UD, state};
use mask::{
    ACCESS_FLAGS as ACCESS, AV, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_QP_RD_ATOMIC, MIN_RNR_TIMER as RNR_TIMER,
    PATH_MTU, PKEY_INDEX as PKEY, PORT, QKEY, RETRY_CNT, RNR_RETRY, RQ_PSN, SQ_PSN, TIMEOUT,
};

const ALT_PATH: c_int = 1 << 14;
const PATH_MIG: c_int = 1 << 18;
/// Automatic path migration: it is part of the table, but not supported.
pub const OTHER_PATH: c_int = ALT_PATH | PATH_MIG;

/// Returns the attributes that a transition requires, and those that it also accepts, without the state itself; `None`
/// if there is no such transition. The table is the one that `farcall-verbs` compares with the specification's,
/// without RESET to ERR, which Linux does not permit.
pub fn row(qp_type: u32, from: u32, to: u32) -> Option<(c_int, c_int)> {
    if (from, to) == (state::RESET, state::ERR) {
        return None;
    }
    let qp_type = match qp_type {
        RC => QpType::Rc,
        UC => QpType::Uc,
        UD => QpType::Ud,
        _ => unreachable!("there are three transports"),
    };
    let row = Transition::of(qp_type, QpState::from_raw(from)?, QpState::from_raw(to)?)?;
    Some((row.required.bits() as c_int, row.optional.bits() as c_int))
}

/// Makes one attribute of `bits` invalid. Returns false if there is none.
pub fn spoil(rng: &mut Rng, attr: &mut QpAttr, bits: c_int, max_rd_atomic: u8) -> bool {
    type Spoiler = fn(&mut QpAttr, u8);
    let spoilers: [(c_int, Spoiler); 11] = [
        (PORT, |attr, _| attr.port_num = 2),
        (PKEY, |attr, _| attr.pkey_index = 1),
        (ACCESS, |attr, _| attr.qp_access_flags = 1 << 12),
        (PATH_MTU, |attr, _| attr.path_mtu = 6),
        (PATH_MTU, |attr, _| attr.path_mtu = 0),
        // No route on Ethernet, no such port, no such entry.
        (AV, |attr, _| attr.ah_attr.is_global = 0),
        (AV, |attr, _| attr.ah_attr.port_num = 0),
        (AV, |attr, _| attr.ah_attr.grh.sgid_index = 15),
        (TIMEOUT, |attr, _| attr.timeout = 32),
        (MAX_QP_RD_ATOMIC, |attr, most| attr.max_rd_atomic = most + 1),
        (MAX_DEST_RD_ATOMIC, |attr, most| attr.max_dest_rd_atomic = most + 1),
    ];
    let usable: Vec<usize> = (0..spoilers.len()).filter(|i| bits & spoilers[*i].0 != 0).collect();
    let Some(chosen) = rng.pick(&usable) else { return false };
    spoilers[chosen].1(attr, max_rd_atomic);
    true
}

/// Stores the attributes that `ibv_query_qp` must return.
pub fn remember(known: &mut QpAttr, changed: &QpAttr, bits: c_int) {
    if bits & mask::STATE != 0 && changed.qp_state == state::RESET {
        // SAFETY: a structure of integers, for which zero is valid.
        *known = QpAttr { cap: known.cap, ..unsafe { crate::library::zeroed() } };
        return;
    }
    macro_rules! keep {
        ($($bit:ident => $field:ident;)*) => { $(if bits & $bit != 0 { known.$field = changed.$field; })* };
    }
    keep! {
        PORT => port_num;
        PKEY => pkey_index;
        ACCESS => qp_access_flags;
        QKEY => qkey;
        PATH_MTU => path_mtu;
        DEST_QPN => dest_qp_num;
        RQ_PSN => rq_psn;
        SQ_PSN => sq_psn;
        AV => ah_attr;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        RNR_TIMER => min_rnr_timer;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
    }
}

/// Compares all attributes that a program can set.
pub fn check_remembered(qp: usize, model: &QpAttr, told: &QpAttr) {
    macro_rules! same {
        ($($field:ident)*) => {
            $(assert_eq!(told.$field, model.$field, concat!("qp{}: ", stringify!($field)), qp);)*
        };
    }
    same! {
        path_mtu qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index max_rd_atomic max_dest_rd_atomic
        min_rnr_timer port_num timeout retry_cnt rnr_retry
    }
    assert_eq!(told.ah_attr.grh.dgid, model.ah_attr.grh.dgid, "qp{qp}: dgid");
}
