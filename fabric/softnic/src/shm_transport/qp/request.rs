//! A send request in the form in which it is executed, immediately or later, and the result of its execution.

use farcall_shm::ring::{SOLICITED, WITH_IMM};
use farcall_verbs::{Access, SendFlags, SendWr, Sge, WcOpcode, WcStatus, WrOpcode, WrTarget};

use crate::process::regions::RegionTable;

#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) opcode: WrOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) imm_be: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    /// Target as posted; contains the operands of an atomic.
    pub(crate) target: &'a WrTarget,
    pub(crate) sges: &'a [Sge],
    pub(crate) len_bytes: u64,
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn of(wr: &'a SendWr<'_>, len_bytes: u64) -> Self {
        let target = wr.rdma();
        Self {
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm_be: wr.imm_data_be,
            remote_addr: target.remote_addr,
            rkey: target.rkey,
            target: wr.target(),
            sges: wr.sges(),
            len_bytes,
        }
    }

    /// Returns whether the regions named by its local elements permit the request of a queue pair of domain `pd`.
    #[inline]
    pub(crate) fn is_allowed(&self, regions: &RegionTable, pd: u32) -> bool {
        let need = if self.opcode.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
        self.flags.contains(SendFlags::INLINE) || regions.allows_all(self.sges, pd, need)
    }

    /// Returns the flags of its record in the target's ring.
    pub(crate) fn record_flags(&self) -> u8 {
        let imm = matches!(self.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM);
        let solicited = self.flags.contains(SendFlags::SOLICITED);
        (u8::from(imm) * WITH_IMM) | (u8::from(solicited) * SOLICITED)
    }
}

/// Reason for which a request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitReason {
    Receiver,
    Peer,
    /// The target must process a message: it matches shared receives itself.
    Target,
    /// The target's process must reply to a request.
    PeerReply,
}

impl WaitReason {
    /// Returns whether the target's process has work to do and must be scheduled first. Such time does not count as
    /// silence of a network.
    pub(super) const fn is_for_scheduling(self) -> bool {
        matches!(self, Self::Target | Self::PeerReply)
    }

    /// Returns the status of a request that has timed out.
    pub(crate) const fn failure_status(self) -> WcStatus {
        match self {
            Self::Receiver => WcStatus::RNR_RETRY_EXC_ERR,
            Self::Peer | Self::Target | Self::PeerReply => WcStatus::RETRY_EXC_ERR,
        }
    }
}

/// Result of executing a request.
pub(crate) enum ExecuteOutcome {
    Done,
    /// Sent to a target with shared receives, which has not accepted it yet.
    Published,
    Wait(WaitReason),
    Failed(WcStatus),
}

pub(crate) const fn completion_opcode(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::SEND | WrOpcode::SEND_WITH_IMM => WcOpcode::SEND,
        WrOpcode::READ => WcOpcode::RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        _ => WcOpcode::RDMA_WRITE,
    }
}
