//! Operations of a queue pair, over which the tables of cases iterate.

use farcall_verbs::{OpCaps, QpType, WrOpcode};

/// The operations, in the order of the cases.
pub(crate) const ALL_OPS: [WrOpcode; 7] = [
    WrOpcode::SEND,
    WrOpcode::SEND_WITH_IMM,
    WrOpcode::WRITE,
    WrOpcode::WRITE_WITH_IMM,
    WrOpcode::READ,
    WrOpcode::ATOMIC_CMP_AND_SWP,
    WrOpcode::ATOMIC_FETCH_AND_ADD,
];

/// Capabilities of a device that cases need.
pub(crate) const SEND: OpCaps = OpCaps::SEND;
pub(crate) const WRITE: OpCaps = OpCaps::WRITE;
pub(crate) const READ: OpCaps = OpCaps::READ;
pub(crate) const ATOMIC: OpCaps = OpCaps::ATOMIC;

/// All transports.
pub(crate) const TRANSPORTS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// Returns the operations of each transport.
pub(crate) fn operations() -> impl Iterator<Item = (QpType, WrOpcode)> {
    TRANSPORTS.into_iter().flat_map(|qp_type| {
        ALL_OPS.into_iter().filter(move |op| op.belongs_to(qp_type)).map(move |op| (qp_type, op))
    })
}

/// Returns a transport's name as used in case names.
pub(crate) fn transport_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Uc => "uc",
        QpType::Ud => "ud",
        _ => "rc",
    }
}

/// Properties of the operations in [`ALL_OPS`].
pub(crate) trait Operation {
    /// Returns the name as used in case names.
    fn name(self) -> &'static str;

    /// Returns the capabilities that a device must have for it.
    fn needed_caps(self) -> OpCaps;

    /// Returns whether the transport defines it (IBA table 38).
    fn belongs_to(self, qp_type: QpType) -> bool;
}

impl Operation for WrOpcode {
    fn name(self) -> &'static str {
        match self {
            Self::SEND => "send",
            Self::SEND_WITH_IMM => "send-imm",
            Self::WRITE => "write",
            Self::WRITE_WITH_IMM => "write-imm",
            Self::READ => "read",
            Self::ATOMIC_CMP_AND_SWP => "cmp-swap",
            _ => "fetch-add",
        }
    }

    fn needed_caps(self) -> OpCaps {
        self.caps().expect("an operation of the table")
    }

    fn belongs_to(self, qp_type: QpType) -> bool {
        qp_type.operations().contains(self.needed_caps())
    }
}
