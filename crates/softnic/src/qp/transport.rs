//! The transports that connect two queue pairs.

use farcall_verbs::{OpCaps, QpType, WrOpcode};

/// What connected queue pairs differ in. The numbers travel in requests to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Connected {
    /// RC: what cannot be done waits or fails.
    Reliable = 0,
    /// UC: what the target cannot take is dropped.
    Unreliable = 1,
}

impl Connected {
    pub(super) const fn of(qp_type: QpType) -> Option<Self> {
        match qp_type {
            QpType::Rc => Some(Self::Reliable),
            QpType::Uc => Some(Self::Unreliable),
            _ => None,
        }
    }

    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Reliable),
            1 => Some(Self::Unreliable),
            _ => None,
        }
    }

    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Self::Reliable => QpType::Rc,
            Self::Unreliable => QpType::Uc,
        }
    }

    /// The operations (IBA table 38).
    pub(crate) const fn ops(self) -> OpCaps {
        let messages = OpCaps::SEND.union(OpCaps::SEND_IMM).union(OpCaps::WRITE).union(OpCaps::WRITE_IMM);
        match self {
            Self::Reliable => messages.union(OpCaps::READ).union(OpCaps::ATOMIC).union(OpCaps::SRQ),
            Self::Unreliable => messages,
        }
    }

    /// The last opcode that brings no operands but an address and a key.
    pub(super) const fn last_plain(self) -> WrOpcode {
        match self {
            Self::Reliable => WrOpcode::READ,
            Self::Unreliable => WrOpcode::SEND_WITH_IMM,
        }
    }

    pub(super) const fn has_atomics(self) -> bool {
        matches!(self, Self::Reliable)
    }
}
