//! Translation of a queue pair's attributes to the library's structure.

use std::io;

use farcall_verbs::{Error, QpAttr, QpState, QpType, Transition};

use crate::ah;
use farcall_layout::{self as abi, mask};

/// Returns the attributes and the mask of the valid ones.
pub(super) fn translate(attr: &QpAttr) -> (abi::QpAttr, i32) {
    let mut raw = abi::QpAttr::default();
    let mut set = 0;
    macro_rules! copy {
        ($($field:ident as $bit:ident => $raw:expr, $value:expr;)*) => {
            $(if let Some($field) = attr.$field { $raw = $value; set |= mask::$bit; })*
        };
    }
    copy! {
        state as STATE => raw.qp_state, state as u32;
        port_num as PORT => raw.port_num, port_num;
        pkey_index as PKEY_INDEX => raw.pkey_index, pkey_index;
        access as ACCESS_FLAGS => raw.qp_access_flags, access.bits();
        qkey as QKEY => raw.qkey, qkey;
        path_mtu as PATH_MTU => raw.path_mtu, path_mtu as u32;
        dest_qp_num as DEST_QPN => raw.dest_qp_num, dest_qp_num;
        rq_psn as RQ_PSN => raw.rq_psn, rq_psn;
        ah as AV => raw.ah_attr, ah::translate(&ah);
        max_dest_rd_atomic as MAX_DEST_RD_ATOMIC => raw.max_dest_rd_atomic, max_dest_rd_atomic;
        min_rnr_timer as MIN_RNR_TIMER => raw.min_rnr_timer, min_rnr_timer.0;
        sq_psn as SQ_PSN => raw.sq_psn, sq_psn;
        timeout as TIMEOUT => raw.timeout, timeout;
        retry_cnt as RETRY_CNT => raw.retry_cnt, retry_cnt;
        rnr_retry as RNR_RETRY => raw.rnr_retry, rnr_retry;
        max_rd_atomic as MAX_QP_RD_ATOMIC => raw.max_rd_atomic, max_rd_atomic;
        en_sqd_async_notify as EN_SQD_ASYNC_NOTIFY => raw.en_sqd_async_notify, en_sqd_async_notify.into();
    }
    (raw, set)
}

/// Returns the error of a failed modification, with its circumstances.
pub(super) fn refused(
    (qp_type, qp_num): (QpType, u32),
    from: QpState,
    attr: &QpAttr,
    source: io::Error,
) -> Error {
    let to = attr.state.map_or_else(|| from.to_string(), |to| to.to_string());
    let mut what = format!("QP {qp_num:#x} from {from} to {to}");
    let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ETIMEDOUT, libc::ENOENT, libc::ENODEV];
    match (attr.ah, source.raw_os_error()) {
        (Some(ah), Some(number)) if unreachable.contains(&number) => {
            what += &format!(
                "; no way from GID index {} of port {} to {} (LID {}): use GIDs of one subnet or a route between them \
                 (farcall devices lists them; --gid-index chooses)",
                ah.sgid_index, ah.port_num, ah.dgid, ah.dlid
            );
        }
        (_, Some(libc::EINVAL))
            if attr.state.is_some_and(|to| Transition::of(qp_type, from, to).is_none()) =>
        {
            what += "; there is no such transition (IBA volume 1, 10.3.1)";
        }
        (_, Some(libc::EINVAL)) => {
            what += "; an attribute is missing, is none of this transport's, or exceeds the device's limits";
        }
        _ => {}
    }
    Error::os("modify_qp", what, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::{Access, AhAttr, Gid, Mtu};

    #[test]
    fn sets_and_masks_present_attributes() {
        let (raw, set) = translate(&QpAttr::init(Access::LOCAL_WRITE | Access::REMOTE_READ));
        assert_eq!(set, mask::STATE | mask::PORT | mask::PKEY_INDEX | mask::ACCESS_FLAGS);
        assert_eq!((raw.qp_state, raw.port_num, raw.qp_access_flags), (1, 1, 5));
        let ah = AhAttr { dgid: Gid::from_ipv4([10, 0, 0, 2].into()), port_num: 1, ..AhAttr::default() };
        let (raw, set) = translate(&QpAttr::rtr(7, 9, ah, Mtu::Mtu2048));
        let rtr = mask::DEST_QPN | mask::RQ_PSN | mask::AV | mask::PATH_MTU;
        assert_eq!(set, mask::STATE | rtr | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        assert_eq!((raw.dest_qp_num, raw.rq_psn, raw.path_mtu, raw.ah_attr.is_global), (7, 9, 4, 1));
        let (raw, set) = translate(&QpAttr::rts(3));
        let rts = mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        assert_eq!(set, mask::STATE | rts);
        assert_eq!((raw.sq_psn, raw.retry_cnt, raw.rnr_retry), (3, 7, 7));
    }

    #[test]
    fn reports_missing_attributes() {
        let errno = io::Error::from_raw_os_error;
        let ah = AhAttr { dgid: Gid::from_ipv4([10, 0, 0, 2].into()), ..AhAttr::default() };
        let rtr = QpAttr::rtr(7, 9, ah, Mtu::Mtu2048);
        let text = refused((QpType::Rc, 1), QpState::Init, &rtr, errno(libc::ENETUNREACH)).to_string();
        assert!(text.contains("--gid-index") && text.contains("INIT to RTR"), "{text}");
        let text = refused((QpType::Rc, 1), QpState::Reset, &rtr, errno(libc::EINVAL)).to_string();
        assert!(text.contains("no such transition"), "{text}");
    }
}
