//! What a work request does, and over which transports the specification has it (IBA table 38).

use farcall_link::Transport;
use farcall_verbs::OpCaps;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes that an atomic works on.
pub const ATOMIC_LEN_BYTES: usize = 8;

/// An operation of an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data: consumes a receive.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// 64-bit compare and swap.
    CompareSwap,
    /// 64-bit fetch and add.
    FetchAdd,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Send,
        Self::SendImm,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// Whether it delivers 32 bits.
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::WriteImm | Self::SendImm)
    }

    /// What a device must have for it.
    #[must_use]
    pub const fn caps(self) -> OpCaps {
        match self {
            Self::Write => OpCaps::WRITE,
            Self::WriteImm => OpCaps::WRITE_IMM,
            Self::Read => OpCaps::READ,
            Self::Send => OpCaps::SEND,
            Self::SendImm => OpCaps::SEND_IMM,
            Self::CompareSwap | Self::FetchAdd => OpCaps::ATOMIC,
        }
    }

    /// Whether the specification has it over `transport`.
    #[must_use]
    pub fn is_legal_over(self, transport: Transport) -> bool {
        match self {
            Self::Send | Self::SendImm => true,
            Self::Write | Self::WriteImm => transport != Transport::Ud,
            Self::Read | Self::CompareSwap | Self::FetchAdd => transport == Transport::Rc,
        }
    }

    /// Whether it consumes a receive at the target, which then notices it.
    #[must_use]
    pub const fn consumes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::SendImm)
    }

    /// Whether it brings data back, and so is complete only when the target answered.
    #[must_use]
    pub const fn returns_data(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether it works on 8 bytes at the target.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Read => "READ",
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::CompareSwap => "CAS",
            Self::FetchAdd => "FAA",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirteen_combinations_are_legal() {
        let legal = |transport| Operation::ALL.iter().filter(|op| op.is_legal_over(transport)).count();
        assert_eq!(Transport::ALL.map(legal), [7, 4, 2]);
    }
}
