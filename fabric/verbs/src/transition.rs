//! The table of queue pair state transitions: the attributes that `modify_qp` requires and accepts for each.
//!
//! The table follows IBA volume 1, section 10.3.1 and table 91, with the optional attributes of Linux and
//! `ibv_modify_qp(3)`. A transition that is not in the table, a missing attribute and a surplus one are refused before
//! anything changes.

use std::fmt;

use bitflags::bitflags;

use crate::QpState::{Err as Error_, Init, Reset, Rtr, Rts, Sqd, Sqe};
use crate::QpType::{self, Rc, Uc, Ud};
use crate::{Error, QpAttr, QpState, Result};

const OP: &str = "modify_qp";

bitflags! {
    /// Attributes of a queue pair, with libibverbs' values (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    pub struct QpAttrMask: u32 {
        /// The new state.
        const STATE = 1;
        /// The state in which the caller assumes the queue pair to be.
        const CUR_STATE = 1 << 1;
        /// Whether SQ_DRAINED is raised.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Accesses permitted to the peer.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// The path to the peer (address vector).
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Transport retries.
        const RETRY_CNT = 1 << 10;
        /// Receiver-not-ready retries.
        const RNR_RETRY = 1 << 11;
        /// First PSN of the receive queue.
        const RQ_PSN = 1 << 12;
        /// READs and atomics as initiator.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path (automatic path migration).
        const ALT_PATH = 1 << 14;
        /// RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN of the send queue.
        const SQ_PSN = 1 << 16;
        /// READs and atomics as target.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// State of path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the queues.
        const CAP = 1 << 19;
        /// The peer's queue pair number.
        const DEST_QPN = 1 << 20;
        /// Rate limit of raw packets.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Writes libibverbs' names without their prefix, separated by bars; bits without a name as a number.
impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bar = "";
        let mut names = self.iter_names();
        for (name, _) in &mut names {
            write!(f, "{bar}{name}")?;
            bar = "|";
        }
        let unnamed = names.remaining().bits();
        if unnamed != 0 { write!(f, "{bar}{unnamed:#x}") } else { Ok(()) }
    }
}

/// The required and the optional attributes of a transition. `STATE` is in neither set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Must be given.
    pub required: QpAttrMask,
    /// May be given.
    pub optional: QpAttrMask,
}

const fn union<const N: usize>(masks: [QpAttrMask; N]) -> QpAttrMask {
    let (mut all, mut at) = (QpAttrMask::empty(), 0);
    while at < N {
        all = all.union(masks[at]);
        at += 1;
    }
    all
}

type M = QpAttrMask;
const NONE: M = M::empty();
const PORT_AND_PARTITION: M = union([M::PKEY_INDEX, M::PORT]);
const PATH: M = union([M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN]);
const MIGRATION: M = union([M::ALT_PATH, M::PATH_MIG_STATE]);
const RETRIES: M = union([M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::MAX_QP_RD_ATOMIC]);
const RESPONDER: M = union([M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER]);

impl Transition {
    /// Returns the row of the table; `None` if there is no such transition. A failed send of a UC or UD queue pair
    /// enters SQE; `modify_qp` never does.
    pub const fn of(qp_type: QpType, from: QpState, to: QpState) -> Option<Self> {
        let (required, optional) = match (from, to) {
            (_, Reset | Error_) => (NONE, NONE),
            (Reset, Init) => (PORT_AND_PARTITION.union(rights(qp_type)), NONE),
            (Init, Init) => (NONE, PORT_AND_PARTITION.union(rights(qp_type))),
            (Init, Rtr) => match qp_type {
                Rc => (PATH.union(RESPONDER), union([M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX])),
                Uc => (PATH, union([M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX])),
                Ud => (NONE, union([M::PKEY_INDEX, M::QKEY])),
            },
            (Rtr, Rts) => match qp_type {
                Rc => (RETRIES.union(M::SQ_PSN), while_sending(qp_type)),
                Uc | Ud => (M::SQ_PSN, while_sending(qp_type)),
            },
            (Rts | Sqd, Rts) => (NONE, while_sending(qp_type)),
            (Rts, Sqd) => (NONE, M::EN_SQD_ASYNC_NOTIFY),
            (Sqd, Sqd) => (NONE, while_drained(qp_type)),
            (Sqe, Rts) => match qp_type {
                // A failed send moves an RC queue pair to ERR, so it is never in SQE.
                Rc => return None,
                Uc | Ud => (NONE, M::CUR_STATE.union(rights(qp_type))),
            },
            _ => return None,
        };
        Some(Self { required, optional })
    }

    /// Returns the missing and the surplus attributes of `given`; both are empty if the transition is allowed.
    pub const fn faults(self, given: QpAttrMask) -> (QpAttrMask, QpAttrMask) {
        let taken = union([self.required, self.optional, M::STATE]);
        (self.required.difference(given), given.difference(taken))
    }
}

/// Returns the attribute that controls which peers may access the queue pair.
const fn rights(qp_type: QpType) -> M {
    match qp_type {
        Rc | Uc => M::ACCESS_FLAGS,
        Ud => M::QKEY,
    }
}

/// Returns the attributes that may be changed on a transition to RTS and in RTS.
const fn while_sending(qp_type: QpType) -> M {
    match qp_type {
        Rc => union([M::CUR_STATE, M::ACCESS_FLAGS, M::MIN_RNR_TIMER, MIGRATION]),
        Uc => union([M::CUR_STATE, M::ACCESS_FLAGS, MIGRATION]),
        Ud => union([M::CUR_STATE, M::QKEY]),
    }
}

/// Returns the attributes that may be changed in SQD.
const fn while_drained(qp_type: QpType) -> M {
    let connected = union([M::AV, M::ACCESS_FLAGS, M::PKEY_INDEX, MIGRATION]);
    match qp_type {
        Rc => union([connected, M::PORT, RETRIES, RESPONDER]),
        Uc => connected,
        Ud => union([M::PKEY_INDEX, M::QKEY]),
    }
}

/// Maps the fields of [`QpAttr`] to the bits of the mask.
macro_rules! attributes {
    ($($field:ident: $bit:ident,)*) => {
        impl QpAttr {
            /// Returns the mask of the fields that are `Some`.
            pub const fn mask(&self) -> QpAttrMask {
                union([$(if self.$field.is_some() { M::$bit } else { NONE }),*])
            }
        }

        const FIELDS: &[(QpAttrMask, &str)] = &[$((M::$bit, stringify!($field))),*];
    };
}

attributes! {
    state: STATE,
    port_num: PORT,
    pkey_index: PKEY_INDEX,
    access: ACCESS_FLAGS,
    qkey: QKEY,
    path_mtu: PATH_MTU,
    dest_qp_num: DEST_QPN,
    rq_psn: RQ_PSN,
    ah: AV,
    max_dest_rd_atomic: MAX_DEST_RD_ATOMIC,
    min_rnr_timer: MIN_RNR_TIMER,
    sq_psn: SQ_PSN,
    timeout: TIMEOUT,
    retry_cnt: RETRY_CNT,
    rnr_retry: RNR_RETRY,
    max_rd_atomic: MAX_QP_RD_ATOMIC,
    en_sqd_async_notify: EN_SQD_ASYNC_NOTIFY,
}

fn field_names(mask: QpAttrMask) -> String {
    let names = FIELDS.iter().filter(|(bit, _)| mask.contains(*bit)).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join(", ")
}

impl QpAttr {
    /// Checks, for providers, a change of a queue pair in state `from`: the transition, its attributes, and the widths
    /// of numbers. Returns the new state. The provider must check the limits of its device itself.
    ///
    /// # Errors
    /// Returns an error that names the queue pair and its state, or the attributes.
    pub fn check_transition(&self, qp_type: QpType, qp_num: u32, from: QpState) -> Result<QpState> {
        let to = self.state.unwrap_or(from);
        let Some(transition) = Transition::of(qp_type, from, to) else {
            return Err(Error::InvalidState {
                operation: OP,
                object: format!("queue pair {qp_num:#x}"),
                state: from.to_string(),
                remedy: "follow RESET → INIT → RTR → RTS; RESET and ERR are always allowed",
            });
        };
        let (missing, surplus) = transition.faults(self.mask());
        if !missing.is_empty() {
            let what = format!("{qp_type:?}: the transition to {to} needs {}", field_names(missing));
            return Err(Error::invalid(OP, what));
        }
        if !surplus.is_empty() {
            let what = format!("{qp_type:?}: {from} to {to} does not take {}", field_names(surplus));
            return Err(Error::invalid(OP, what));
        }
        let numbers = [("dest_qp_num", self.dest_qp_num), ("rq_psn", self.rq_psn), ("sq_psn", self.sq_psn)];
        for (name, number) in numbers {
            if let Some(number) = number.filter(|number| number >> 24 != 0) {
                return Err(Error::invalid(OP, format!("{name} {number:#x} has more than 24 bits")));
            }
        }
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    #[test]
    fn a_mask_is_shown_by_names() {
        assert_eq!((M::AV | M::PORT).to_string(), "PORT|AV");
        assert_eq!(M::from_bits_retain(1 << 30 | 1).to_string(), "STATE|0x40000000");
    }

    #[test]
    fn a_refusal_names_every_attribute() {
        let attr = QpAttr { state: Some(Rts), sq_psn: Some(1), ..QpAttr::default() };
        let text = attr.check_transition(Rc, 7, Rtr).unwrap_err().to_string();
        assert!(text.ends_with("to RTS needs timeout, retry_cnt, rnr_retry, max_rd_atomic"), "{text}");
        let text = QpAttr::rts(1).check_transition(Uc, 7, Rtr).unwrap_err().to_string();
        assert!(text.ends_with("does not take timeout, retry_cnt, rnr_retry, max_rd_atomic"), "{text}");
        let text = QpAttr::init(Access::empty()).check_transition(Rc, 7, Rts).unwrap_err().to_string();
        assert!(text.contains("queue pair 0x7 is in state RTS"), "{text}");
        let text = QpAttr::rts_unreliable(1 << 24).check_transition(Ud, 7, Rtr).unwrap_err().to_string();
        assert!(text.contains("sq_psn 0x1000000 has more than 24 bits"), "{text}");
    }

    #[test]
    fn a_change_without_a_state_stays_in_it() {
        let attr = QpAttr { qkey: Some(1), ..QpAttr::default() };
        assert_eq!(attr.check_transition(Ud, 7, Rts).unwrap(), Rts);
        assert!(attr.check_transition(Ud, 7, Rtr).is_err() && attr.check_transition(Rc, 7, Rts).is_err());
    }
}
