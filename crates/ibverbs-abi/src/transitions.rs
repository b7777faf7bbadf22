//! Which attributes each transition of a queue pair needs, and which it takes besides: IBA table 91, as the Linux kernel
//! applies it to every device. A mask with one too few or one too many is refused before anything is changed.

use std::ffi::c_int;

use farcall_trace::QpAttrMask;
use farcall_verbs::QpState::{self, Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use farcall_verbs::QpType::{self, Rc, Ud};

use crate::errno;
use farcall_ibv::abi::whole::mask::{
    ACCESS_FLAGS, ALT_PATH, AV, CUR_STATE, DEST_QPN, EN_SQD_ASYNC_NOTIFY, MAX_DEST_RD_ATOMIC,
    MAX_QP_RD_ATOMIC, MIN_RNR_TIMER, PATH_MIG_STATE, PATH_MTU, PKEY_INDEX, PORT, QKEY, RETRY_CNT, RNR_RETRY,
    RQ_PSN, SQ_PSN, STATE, TIMEOUT,
};

/// What a transition needs, and what it takes besides.
struct Row {
    needed: c_int,
    optional: c_int,
}

const PATH: c_int = AV | PATH_MTU | DEST_QPN | RQ_PSN;
const MIGRATION: c_int = ALT_PATH | PATH_MIG_STATE;

/// `None` if there is no such transition. From RESET to ERR there is none: the specification's figure has it, the kernel
/// and so every device that programs know has not.
fn row(qp_type: QpType, from: QpState, to: QpState) -> Option<Row> {
    let is_datagram = qp_type == Ud;
    let (needed, optional) = match (from, to) {
        (_, Reset) => (0, 0),
        (Init | Rtr | Rts | Sqd | Sqe | Error, Error) => (0, 0),
        (Reset, Init) if is_datagram => (PKEY_INDEX | PORT | QKEY, 0),
        (Reset, Init) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (Init, Init) if is_datagram => (0, PKEY_INDEX | PORT | QKEY),
        (Init, Init) => (0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (Init, Rtr) if is_datagram => (0, PKEY_INDEX | QKEY),
        (Init, Rtr) if qp_type == Rc => {
            (PATH | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX)
        }
        (Init, Rtr) => (PATH, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
        (Rtr, Rts) if qp_type == Rc => {
            (TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC, while_sending(qp_type))
        }
        (Rtr, Rts) => (SQ_PSN, while_sending(qp_type)),
        (Rts | Sqd, Rts) => (0, while_sending(qp_type)),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (0, while_drained(qp_type)),
        // Reliable pairs have no state for an error of sends alone.
        (Sqe, Rts) if qp_type != Rc => (0, while_sending(qp_type) & !MIGRATION),
        _ => return None,
    };
    Some(Row { needed, optional })
}

/// What may be changed on the way to RTS and in it.
fn while_sending(qp_type: QpType) -> c_int {
    match qp_type {
        Ud => CUR_STATE | QKEY,
        Rc => CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER | MIGRATION,
        _ => CUR_STATE | ACCESS_FLAGS | MIGRATION,
    }
}

/// What may be changed in SQD.
fn while_drained(qp_type: QpType) -> c_int {
    let connected = AV | ACCESS_FLAGS | PKEY_INDEX | MIGRATION;
    let reliable =
        PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    match qp_type {
        Ud => PKEY_INDEX | QKEY,
        Rc => connected | reliable,
        _ => connected,
    }
}

/// Checks a mask.
///
/// # Errors
/// `EINVAL` if there is no such transition, or it needs or takes other attributes.
pub fn check(qp_type: QpType, from: QpState, to: QpState, attr_mask: c_int) -> Result<(), c_int> {
    let refused = |why| Err(errno::refused(libc::EINVAL, why));
    let Some(row) = row(qp_type, from, to) else {
        return refused(format_args!(
            "no transition of an {qp_type:?} queue pair leads from {from:?} to {to:?}"
        ));
    };
    let missing = QpAttrMask(row.needed & !attr_mask);
    let surplus = QpAttrMask(attr_mask & !(row.needed | row.optional | STATE));
    match (missing.0, surplus.0) {
        (0, 0) => Ok(()),
        (0, _) => refused(format_args!("{qp_type:?}, {from:?} to {to:?}: does not take {surplus}")),
        _ => refused(format_args!("{qp_type:?}, {from:?} to {to:?}: needs {missing}, too")),
    }
}
