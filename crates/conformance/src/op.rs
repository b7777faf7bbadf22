//! The operations of a queue pair, as tables of cases use them.

use farcall_verbs::{OpCaps, QpType, SendFlags, WcOpcode, WrOpcode};

use crate::peer::Peer;
use crate::side::{Piece, SendRequest, Target};

/// Every operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
}

/// All operations.
pub(crate) const ALL_OPS: [Op; 7] =
    [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read, Op::CmpSwap, Op::FetchAdd];

/// The transports.
pub(crate) const TRANSPORTS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// Which transport has which operation (IBA table 38).
pub(crate) fn operations() -> impl Iterator<Item = (QpType, Op)> {
    TRANSPORTS.into_iter().flat_map(|qp_type| {
        ALL_OPS.into_iter().filter(move |op| op.is_of(qp_type)).map(move |op| (qp_type, op))
    })
}

/// A transport's name in names of cases.
pub(crate) fn transport_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Uc => "uc",
        QpType::Ud => "ud",
        _ => "rc",
    }
}

/// The immediate data of requests that have some.
pub(crate) const IMM: u32 = 0x0102_0304;

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::CmpSwap => "cmp-swap",
            Self::FetchAdd => "fetch-add",
        }
    }

    pub(crate) fn is_of(self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Ud => matches!(self, Self::Send | Self::SendImm),
            QpType::Uc => !self.returns_data(),
            _ => true,
        }
    }

    pub(crate) fn caps(self) -> OpCaps {
        match self {
            Self::Send => OpCaps::SEND,
            Self::SendImm => OpCaps::SEND_IMM,
            Self::Write => OpCaps::WRITE,
            Self::WriteImm => OpCaps::WRITE_IMM,
            Self::Read => OpCaps::READ,
            Self::CmpSwap | Self::FetchAdd => OpCaps::ATOMIC,
        }
    }

    pub(crate) fn opcode(self) -> WrOpcode {
        match self {
            Self::Send => WrOpcode::SEND,
            Self::SendImm => WrOpcode::SEND_WITH_IMM,
            Self::Write => WrOpcode::WRITE,
            Self::WriteImm => WrOpcode::WRITE_WITH_IMM,
            Self::Read => WrOpcode::READ,
            Self::CmpSwap => WrOpcode::ATOMIC_CMP_AND_SWP,
            Self::FetchAdd => WrOpcode::ATOMIC_FETCH_AND_ADD,
        }
    }

    /// What its completion says at the initiator.
    pub(crate) fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm => WcOpcode::SEND,
            Self::Write | Self::WriteImm => WcOpcode::RDMA_WRITE,
            Self::Read => WcOpcode::RDMA_READ,
            Self::CmpSwap => WcOpcode::COMP_SWAP,
            Self::FetchAdd => WcOpcode::FETCH_ADD,
        }
    }

    pub(crate) fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    pub(crate) fn consumes_receive(self) -> bool {
        self.opcode().consumes_receive()
    }

    pub(crate) fn returns_data(self) -> bool {
        self.opcode().returns_data()
    }

    /// Whether it names memory of the target.
    pub(crate) fn is_one_sided(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// A signalled request of `len` bytes (atomics: 8) between offset 0 of `a`'s region and offset `remote` of `b`'s;
    /// CAS compares with 0 and stores 1, FAA adds 1.
    pub(crate) fn request(self, wr_id: u64, a: &Peer, b: &Peer, len: u32, remote: u64) -> SendRequest {
        let len = if self.is_atomic() { 8 } else { len };
        self.request_from(wr_id, vec![a.piece(0, len)], a, b, b.mr.addr.wrapping_add(remote), b.mr.rkey)
    }

    /// As `request`, with everything given.
    pub(crate) fn request_from(
        self,
        wr_id: u64,
        pieces: Vec<Piece>,
        a: &Peer,
        b: &Peer,
        addr: u64,
        rkey: u32,
    ) -> SendRequest {
        let target = match self {
            Self::Send | Self::SendImm => a.message_target(b),
            Self::Write | Self::WriteImm | Self::Read => Target::Memory { addr, rkey },
            Self::CmpSwap => Target::Atomic { addr, rkey, compare_add: 0, swap: 1 },
            Self::FetchAdd => Target::Atomic { addr, rkey, compare_add: 1, swap: 0 },
        };
        SendRequest {
            wr_id,
            opcode: self.opcode().0,
            flags: SendFlags::SIGNALED.bits(),
            imm: if self.has_imm() { IMM } else { 0 },
            pieces,
            target,
        }
    }
}

impl SendRequest {
    /// Not signalled.
    pub(crate) fn unsignaled(mut self) -> Self {
        self.flags &= !SendFlags::SIGNALED.bits();
        self
    }

    /// With more flags.
    pub(crate) fn flagged(mut self, flags: SendFlags) -> Self {
        self.flags |= flags.bits();
        self
    }
}
