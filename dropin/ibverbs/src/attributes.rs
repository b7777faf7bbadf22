//! Conversion of attributes between the C structures and the provider's.

use std::ffi::c_int;

use farcall_verbs as verbs;
use farcall_verbs::{Gid, Mtu, QpAttrMask, QpState, QpType, RnrTimer, Transition};

use crate::{access, errno};
use farcall_layout::{AhAttr, QpAttr, QpCap, mask};

/// Automatic path migration is not supported.
const NOT_OFFERED: c_int = mask::ALT_PATH | mask::PATH_MIG_STATE;
/// Unknown bits of the mask, and the rate limit of raw packets.
const UNKNOWN: c_int = !0x1f_ffff;
/// Packet sequence numbers have 24 bits; the kernel truncates longer ones.
const PSN_MASK: u32 = 0xff_ffff;
/// Codes of the ACK timeout and the RNR timer have five bits.
const TIMER_CODE_MAX: u8 = 31;

/// Checks a transition and its attributes, before any change.
fn check_transition(qp_type: QpType, from: QpState, to: QpState, attr_mask: c_int) -> Result<(), c_int> {
    let refused = |why| Err(errno::refused(libc::EINVAL, why));
    // The specification permits RESET to ERR, but Linux refuses it for every device, so programs that use libibverbs
    // do not expect it.
    let is_refused_by_linux = (from, to) == (QpState::Reset, QpState::Err);
    let Some(row) = Transition::of(qp_type, from, to).filter(|_| !is_refused_by_linux) else {
        return refused(format_args!("no transition of an {qp_type:?} queue pair leads from {from} to {to}"));
    };
    let (missing, surplus) = row.faults(QpAttrMask::from_bits_retain(attr_mask as u32));
    match (missing.is_empty(), surplus.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => refused(format_args!("{qp_type:?}, {from} to {to}: does not take {surplus}")),
        _ => refused(format_args!("{qp_type:?}, {from} to {to}: needs {missing}, too")),
    }
}

/// Converts a path from C. Without a GID there is no path on Ethernet, which the provider reports.
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

/// Converts a path to C, with a global route or only a LID.
pub fn path_to_c(path: &verbs::AhAttr, is_global: bool) -> AhAttr {
    let mut attr = AhAttr { dlid: path.dlid, sl: path.sl, port_num: path.port_num, ..AhAttr::default() };
    if is_global {
        attr.is_global = 1;
        attr.grh.dgid = path.dgid.0;
        attr.grh.sgid_index = path.sgid_index;
        attr.grh.traffic_class = path.traffic_class;
        attr.grh.hop_limit = 0xff;
    }
    attr
}

/// Limits of the device and its port.
pub struct Limits {
    /// Maximum number of outstanding READs and atomics of a queue pair.
    pub max_rd_atomic: u8,
    pub max_cqe: c_int,
    pub gid_tbl_len: u32,
}

/// Returns the changes of a call of `ibv_modify_qp`.
///
/// # Errors
/// Returns an error number for a transition that does not exist or requires other attributes, for invalid values, and
/// for unsupported attributes.
pub fn changes(
    attr: &QpAttr,
    attr_mask: c_int,
    (qp_type, from): (QpType, QpState),
    limits: &Limits,
) -> Result<verbs::QpAttr, c_int> {
    if attr_mask & UNKNOWN != 0 {
        let unknown = QpAttrMask::from_bits_retain((attr_mask & UNKNOWN) as u32);
        return Err(errno::refused(libc::EOPNOTSUPP, format_args!("attr_mask: {unknown} is unknown")));
    }
    let has = |bit: c_int| attr_mask & bit != 0;
    let state = has(mask::STATE)
        .then(|| QpState::from_raw(attr.qp_state).ok_or_else(|| unknown("qp_state", attr.qp_state)))
        .transpose()?;
    check_transition(qp_type, from, state.unwrap_or(from), attr_mask)?;
    if attr_mask & mask::CUR_STATE != 0 && attr.cur_qp_state != from as u32 {
        return Err(errno::refused(
            libc::EINVAL,
            format_args!("cur_qp_state: the queue pair is in {from:?}"),
        ));
    }
    if attr_mask & NOT_OFFERED != 0 {
        let wanted = QpAttrMask::from_bits_retain((attr_mask & NOT_OFFERED) as u32);
        return Err(errno::refused(libc::EOPNOTSUPP, format_args!("{wanted}: not offered")));
    }
    check_values(attr, attr_mask, limits)?;
    Ok(verbs::QpAttr {
        state,
        port_num: has(mask::PORT).then_some(attr.port_num),
        pkey_index: has(mask::PKEY_INDEX).then_some(attr.pkey_index),
        access: has(mask::ACCESS_FLAGS).then(|| access::of_pair(attr.qp_access_flags)).transpose()?,
        qkey: has(mask::QKEY).then_some(attr.qkey),
        path_mtu: has(mask::PATH_MTU)
            .then(|| Mtu::from_raw(attr.path_mtu).ok_or_else(|| unknown("path_mtu", attr.path_mtu)))
            .transpose()?,
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

fn unknown(name: &str, value: u32) -> c_int {
    errno::refused(libc::EINVAL, format_args!("{name} {value}: unknown"))
}

/// Checks for values that no device accepts. Partition and port have one entry each.
fn check_values(attr: &QpAttr, attr_mask: c_int, limits: &Limits) -> Result<(), c_int> {
    let max_rd_atomic = limits.max_rd_atomic;
    let bad = [
        (mask::PORT, attr.port_num != 1, "port_num: there is port 1 alone"),
        (mask::PKEY_INDEX, attr.pkey_index != 0, "pkey_index: there is partition 0 alone"),
        (
            mask::AV,
            !is_valid_path(&attr.ah_attr, limits.gid_tbl_len),
            "ah_attr: on Ethernet a path has is_global = 1, a sgid_index of the port's table and port_num = 1 \
             (ping-pongs: -g 1; perftest: -x 1)",
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
                // A common error of programs written for InfiniBand.
                errno::complain_once("ibv_modify_qp: ah_attr", format_args!("ibv_modify_qp: {why}"));
            }
            Err(errno::refused(libc::EINVAL, format_args!("{why}")))
        }
        None => Ok(()),
    }
}

/// Returns whether a path begins at the device's port and one of its GIDs. On Ethernet it has a global route (`man
/// ibv_modify_qp`).
fn is_valid_path(attr: &AhAttr, gid_tbl_len: u32) -> bool {
    attr.is_global != 0 && attr.port_num == 1 && u32::from(attr.grh.sgid_index) < gid_tbl_len
}

/// Returns the attributes of a new queue pair.
pub fn fresh(cap: QpCap) -> QpAttr {
    QpAttr { cap, ..QpAttr::default() }
}

/// Stores the changed attributes.
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
