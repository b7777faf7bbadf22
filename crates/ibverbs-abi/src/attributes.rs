//! From the C structures' attributes to the provider's, and back.

use std::ffi::c_int;

use farcall_trace::QpAttrMask;
use farcall_verbs as verbs;
use farcall_verbs::{Access, Gid, Mtu, QpState, QpType, RnrTimer};

use crate::{errno, transitions};
use farcall_ibv::abi::whole::{AhAttr, QpAttr, QpCap, mask};

/// Automatic path migration is not offered.
const NOT_OFFERED: c_int = mask::ALT_PATH | mask::PATH_MIG_STATE;
/// Bits of masks of the future, and the rate limit of raw packets.
const UNKNOWN: c_int = !0x1f_ffff;
/// Packet sequence numbers have so many bits; the kernel cuts longer ones.
const PSN_MASK: u32 = 0xff_ffff;
/// Codes of the ACK timeout and the RNR timer have five bits.
const TIMER_CODE_MAX: u8 = 31;

/// A state by its number.
pub fn state(value: u32) -> Result<QpState, c_int> {
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

/// What a call of `ibv_modify_qp` changes; `max_rd_atomic` is the device's limit.
///
/// # Errors
/// An error number, for a transition that there is not or that goes with other attributes, for values that mean nothing,
/// and for what is not offered.
pub fn changes(
    attr: &QpAttr,
    attr_mask: c_int,
    (qp_type, from): (QpType, QpState),
    max_rd_atomic: u8,
) -> Result<verbs::QpAttr, c_int> {
    if attr_mask & UNKNOWN != 0 {
        let unknown = QpAttrMask(attr_mask & UNKNOWN);
        return Err(errno::refused(libc::EOPNOTSUPP, format_args!("attr_mask: {unknown} is unknown")));
    }
    let to = if attr_mask & mask::STATE != 0 { state(attr.qp_state)? } else { from };
    transitions::check(qp_type, from, to, attr_mask)?;
    if attr_mask & mask::CUR_STATE != 0 && attr.cur_qp_state != from as u32 {
        return Err(errno::refused(
            libc::EINVAL,
            format_args!("cur_qp_state: the queue pair is in {from:?}"),
        ));
    }
    if attr_mask & NOT_OFFERED != 0 {
        let wanted = QpAttrMask(attr_mask & NOT_OFFERED);
        return Err(errno::refused(libc::EOPNOTSUPP, format_args!("{wanted}: not offered")));
    }
    check_values(attr, attr_mask, max_rd_atomic)?;
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
        rq_psn: has(mask::RQ_PSN).then_some(attr.rq_psn & PSN_MASK),
        ah: has(mask::AV).then(|| path(&attr.ah_attr)),
        max_dest_rd_atomic: has(mask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(mask::MIN_RNR_TIMER).then_some(RnrTimer(attr.min_rnr_timer)),
        sq_psn: has(mask::SQ_PSN).then_some(attr.sq_psn & PSN_MASK),
        timeout: has(mask::TIMEOUT).then_some(attr.timeout),
        retry_cnt: has(mask::RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(mask::RNR_RETRY).then_some(attr.rnr_retry),
        max_rd_atomic: has(mask::MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        en_sqd_async_notify: has(mask::EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    })
}

/// Values that no device takes. Partition and port have one entry each.
fn check_values(attr: &QpAttr, attr_mask: c_int, max_rd_atomic: u8) -> Result<(), c_int> {
    let bad = [
        (mask::PORT, attr.port_num != 1, "port_num: there is port 1 alone"),
        (mask::PKEY_INDEX, attr.pkey_index != 0, "pkey_index: there is partition 0 alone"),
        (
            mask::AV,
            !is_valid_path(&attr.ah_attr),
            "ah_attr: on Ethernet a path has is_global = 1, sgid_index = 0 and port_num = 1 (ping-pongs: -g 0; perftest: -x 0)",
        ),
        (mask::TIMEOUT, attr.timeout > TIMER_CODE_MAX, "timeout: at most 31"),
        (mask::MIN_RNR_TIMER, attr.min_rnr_timer > TIMER_CODE_MAX, "min_rnr_timer: at most 31"),
        (
            mask::MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic > max_rd_atomic,
            "max_rd_atomic: over the device's limit",
        ),
        (
            mask::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic > max_rd_atomic,
            "max_dest_rd_atomic: over the device's limit",
        ),
    ];
    match bad.iter().find(|(bit, is_bad, _)| attr_mask & *bit != 0 && *is_bad) {
        Some((bit, _, why)) => {
            if *bit == mask::AV {
                // Whoever knows InfiniBand alone meets this first.
                errno::complain_once("ibv_modify_qp: ah_attr", format_args!("ibv_modify_qp: {why}"));
            }
            Err(errno::refused(libc::EINVAL, format_args!("{why}")))
        }
        None => Ok(()),
    }
}

/// Whether a path begins at our port and its one GID; on Ethernet it has a global route (`man ibv_modify_qp`).
fn is_valid_path(attr: &AhAttr) -> bool {
    attr.is_global != 0 && attr.port_num == 1 && attr.grh.sgid_index == 0
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
    known.rq_psn &= PSN_MASK;
    known.sq_psn &= PSN_MASK;
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
