//! Operations of work requests, and the transports over which the specification defines them (IBA table 38).

use farcall_link::Transport;
use farcall_verbs::OpCaps;
use serde::{Deserialize, Serialize};

/// Bytes on which an atomic operates.
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

names! {
    Operation {
        Write => "WRITE", WriteImm => "WRITE_IMM", Read => "READ", Send => "SEND", SendImm => "SEND_IMM",
        CompareSwap => "CAS", FetchAdd => "FAA",
    }
}

impl Operation {
    /// Returns whether the operation delivers 32 bits of immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::WriteImm | Self::SendImm)
    }

    /// Returns the device capabilities that the operation requires.
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

    /// Returns whether the specification defines the operation over `transport`.
    pub fn is_legal_over(self, transport: Transport) -> bool {
        match self {
            Self::Send | Self::SendImm => true,
            Self::Write | Self::WriteImm => transport != Transport::Ud,
            Self::Read | Self::CompareSwap | Self::FetchAdd => transport == Transport::Rc,
        }
    }

    /// Returns whether the operation consumes a receive at the target, which thereby notices it.
    pub const fn consumes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::SendImm)
    }

    /// Returns whether the operation returns data, and therefore completes only after the target's response.
    pub const fn returns_data(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the operation modifies 8 bytes at the target.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
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
