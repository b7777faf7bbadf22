//! Packets: what travels between nodes. Not bytes but fields; nothing here is ever parsed.

use farcall_verbs::{QpType, RnrTimer};

/// A node's number.
pub(crate) type Node = u32;

/// Packet sequence numbers are counted modulo 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Psn(u32);

const MASK: u32 = 0x00ff_ffff;

impl Psn {
    pub(crate) const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    pub(crate) const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    pub(crate) const fn before(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How many packets `self` comes after `other`; more than half of the circle means before.
    pub(crate) const fn after(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & MASK
    }

    /// Whether it comes before `other` on the nearer way round.
    pub(crate) const fn is_before(self, other: Self) -> bool {
        self.0 != other.0 && self.after(other) > MASK / 2
    }

    pub(crate) const fn number(self) -> u64 {
        self.0 as u64
    }
}

/// Where a WRITE or READ works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}

/// A 64-bit atomic operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

impl AtomicOp {
    pub(crate) const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// Why a responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// A packet is missing before it: go back.
    Sequence,
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
}

/// One packet of a SEND or WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    /// WRITE: where to (in the first packet).
    pub(crate) target: Option<Target>,
    pub(crate) is_write: bool,
    /// In the last packet.
    pub(crate) imm_be: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) ack_requested: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Part(Part, Vec<u8>),
    ReadRequest(Target),
    AtomicRequest { addr: u64, rkey: u32, op: AtomicOp },
    ReadResponse(Vec<u8>),
    AtomicResponse(u64),
    Ack,
    Nak(Nak),
    NotReady(RnrTimer),
    Datagram { qkey: u32, imm_be: Option<u32>, solicited: bool, payload: Vec<u8> },
}

impl Body {
    pub(crate) const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::ReadResponse(_) | Self::AtomicResponse(_) | Self::Ack | Self::Nak(_) | Self::NotReady(_)
        )
    }

    /// For the trace.
    pub(crate) const fn code(&self) -> u64 {
        match self {
            Self::Part(part, _) => 1 + part.is_write as u64,
            Self::ReadRequest(_) => 3,
            Self::AtomicRequest { .. } => 4,
            Self::ReadResponse(_) => 5,
            Self::AtomicResponse(_) => 6,
            Self::Ack => 7,
            Self::Nak(_) => 8,
            Self::NotReady(_) => 9,
            Self::Datagram { .. } => 10,
        }
    }
}

/// A packet under way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) src: Node,
    pub(crate) dst: Node,
    pub(crate) src_qpn: u32,
    pub(crate) dst_qpn: u32,
    pub(crate) transport: QpType,
    pub(crate) psn: Psn,
    pub(crate) body: Body,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(2), Psn::new(1));
        assert_eq!(Psn::new(0).before(), last);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert!(!last.is_before(last));
        assert_eq!(Psn::new(3).after(last), 4);
    }

    #[test]
    fn atomics_compute() {
        assert_eq!(AtomicOp::FetchAdd { add: 2 }.apply(u64::MAX), 1);
        assert_eq!(AtomicOp::CompareSwap { compare: 1, swap: 9 }.apply(1), 9);
        assert_eq!(AtomicOp::CompareSwap { compare: 1, swap: 9 }.apply(2), 2);
    }
}
