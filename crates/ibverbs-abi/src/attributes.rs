//! From the C structures' attributes to the provider's, and back.

use std::ffi::c_int;

use farcall_verbs as verbs;
use farcall_verbs::{Access, Gid, Mtu, QpState, RnrTimer};

use farcall_ibv::abi::whole::{AhAttr, QpAttr, QpCap, mask};

/// What `ibv_modify_qp` may not change here: another path, migration, sizes, rate.
const NOT_OFFERED: c_int = !(mask::STATE
    | mask::CUR_STATE
    | mask::EN_SQD_ASYNC_NOTIFY
    | mask::ACCESS_FLAGS
    | mask::PKEY_INDEX
    | mask::PORT
    | mask::QKEY
    | mask::AV
    | mask::PATH_MTU
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::RQ_PSN
    | mask::MAX_QP_RD_ATOMIC
    | mask::MIN_RNR_TIMER
    | mask::SQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::DEST_QPN);

fn state(value: u32) -> Result<QpState, c_int> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err]
        .into_iter()
        .find(|state| *state as u32 == value)
        .ok_or(libc::EINVAL)
}

fn mtu(value: u32) -> Result<Mtu, c_int> {
    [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096]
        .into_iter()
        .find(|mtu| *mtu as u32 == value)
        .ok_or(libc::EINVAL)
}

/// A path. Without a GID there is none on Ethernet; the provider says so.
pub fn path(attr: &AhAttr) -> verbs::AhAttr {
    let dgid = if attr.is_global != 0 { Gid(attr.grh.dgid) } else { Gid::default() };
    verbs::AhAttr {
        dgid,
        sgid_index: attr.grh.sgid_index,
        dlid: attr.dlid,
        port_num: attr.port_num,
        sl: attr.sl,
        traffic_class: attr.grh.traffic_class,
    }
}

/// A path as C sees it; with a global route, or by LID alone.
pub fn path_to_c(path: &verbs::AhAttr, is_global: bool) -> AhAttr {
    // SAFETY: plain numbers, for which zero is a value.
    let mut attr: AhAttr = unsafe { std::mem::zeroed() };
    attr.dlid = path.dlid;
    attr.sl = path.sl;
    attr.port_num = path.port_num;
    if is_global {
        attr.is_global = 1;
        attr.grh.dgid = path.dgid.0;
        attr.grh.sgid_index = path.sgid_index;
        attr.grh.traffic_class = path.traffic_class;
        attr.grh.hop_limit = 0xff;
    }
    attr
}

/// What a call of `ibv_modify_qp` changes.
///
/// # Errors
/// An error number, for values that mean nothing and changes that are not offered.
pub fn changes(attr: &QpAttr, attr_mask: c_int) -> Result<verbs::QpAttr, c_int> {
    if attr_mask & NOT_OFFERED != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let has = |bit: c_int| attr_mask & bit != 0;
    Ok(verbs::QpAttr {
        state: has(mask::STATE).then(|| state(attr.qp_state)).transpose()?,
        port_num: has(mask::PORT).then_some(attr.port_num),
        pkey_index: has(mask::PKEY_INDEX).then_some(attr.pkey_index),
        access: has(mask::ACCESS_FLAGS)
            .then(|| Access::from_bits(attr.qp_access_flags).ok_or(libc::EINVAL))
            .transpose()?,
        qkey: has(mask::QKEY).then_some(attr.qkey),
        path_mtu: has(mask::PATH_MTU).then(|| mtu(attr.path_mtu)).transpose()?,
        dest_qp_num: has(mask::DEST_QPN).then_some(attr.dest_qp_num),
        rq_psn: has(mask::RQ_PSN).then_some(attr.rq_psn),
        ah: has(mask::AV).then(|| path(&attr.ah_attr)),
        max_dest_rd_atomic: has(mask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(RnrTimer(attr.min_rnr_timer)),
        sq_psn: has(mask::SQ_PSN).then_some(attr.sq_psn),
        timeout: has(mask::TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(mask::RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(mask::RNR_RETRY).then_some(attr.rnr_retry),
        max_rd_atomic: has(mask::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        en_sqd_async_notify: has(mask::EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    })
}

/// Attributes of a new queue pair.
pub fn fresh(cap: QpCap) -> QpAttr {
    // SAFETY: plain numbers, for which zero is a value.
    QpAttr { cap, ..unsafe { std::mem::zeroed() } }
}

/// Keeps what was changed.
pub fn remember(known: &mut QpAttr, changed: &QpAttr, attr_mask: c_int) {
    if attr_mask & mask::STATE != 0 && changed.qp_state == QpState::Reset as u32 {
        *known = fresh(known.cap);
        return;
    }
    macro_rules! keep {
        ($($bit:ident => $($field:ident),+;)*) => {
            $(if attr_mask & mask::$bit != 0 { $(known.$field = changed.$field;)+ })*
        };
    }
    keep! {
        PORT => port_num;
        PKEY_INDEX => pkey_index;
        ACCESS_FLAGS => qp_access_flags;
        QKEY => qkey;
        PATH_MTU => path_mtu;
        DEST_QPN => dest_qp_num;
        RQ_PSN => rq_psn;
        AV => ah_attr;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        SQ_PSN => sq_psn;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
    }
}

/// Sizes asked for. A pair on a shared receive queue has no receives of its own.
pub fn cap_from_c(cap: &QpCap, is_shared: bool) -> verbs::QpCap {
    verbs::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: if is_shared { 0 } else { cap.max_recv_wr },
        max_send_sge: cap.max_send_sge,
        max_recv_sge: if is_shared { 0 } else { cap.max_recv_sge },
        max_inline_data: cap.max_inline_data,
    }
}

/// Sizes given.
pub fn cap_to_c(cap: &verbs::QpCap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
