//! Packets as fields: the base transport header (BTH) and the extended headers of IBA volume 1, chapter 9. Payload is
//! passed next to a packet and is not part of it.

use farcall_verbs::{QpType, RnrTimer};

use crate::Psn;

/// RDMA extended transport header: the remote memory of a WRITE or READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
    /// DMA length: length of the complete message in bytes.
    pub len_bytes: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of the eight bytes.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
    /// The operation.
    pub op: AtomicOp,
}

/// A 64-bit atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the bytes equal `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the new value of bytes whose value is `old`.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key, which must equal the receiver's.
    pub qkey: u32,
    /// Queue pair number of the sender.
    pub src_qpn: u32,
}

/// Reason of a responder's refusal (NAK codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// A packet is missing before this one.
    PsnSequence,
    /// The request is malformed or not supported.
    InvalidRequest,
    /// The rkey, its bounds or its permissions do not allow the access.
    RemoteAccess,
    /// The responder cannot execute the request.
    RemoteOperation,
}

/// The syndrome of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All requests up to the packet's PSN were executed.
    Ack,
    /// No receive is posted: retransmit after this time.
    Rnr(RnrTimer),
    /// Refused.
    Nak(Nak),
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Result of the request.
    pub syndrome: Syndrome,
    /// Message sequence number: requests completed so far, 24 bits.
    pub msn: u32,
}

/// Position of a packet within its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Segment {
    /// Returns the segment that begins its message if `is_first` and ends it if `is_last`.
    #[must_use]
    pub const fn new(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    /// Returns whether the message begins with the packet.
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether the message ends with the packet.
    #[must_use]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Operation of a packet: its opcode, with the extended headers of that opcode. Immediate data is in network byte order
/// and part of the last packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND over a connection.
    Send(Segment, Option<u32>),
    /// RDMA WRITE; the RETH is in the first packet.
    Write(Segment, Option<Reth>, Option<u32>),
    /// RDMA READ request.
    ReadRequest(Reth),
    /// CmpSwap or FetchAdd.
    AtomicRequest(AtomicEth),
    /// RDMA READ response; the AETH is in all packets but the middle ones.
    ReadResponse(Segment, Option<Aeth>),
    /// Atomic acknowledge, with the old value.
    AtomicAcknowledge(Aeth, u64),
    /// Acknowledge: ACK, RNR NAK or NAK.
    Acknowledge(Aeth),
    /// SEND only, as a datagram.
    Datagram(Deth, Option<u32>),
    /// Congestion notification packet (CNP): packets of the destination queue pair met congestion (annex A17.9). It
    /// belongs to no transport, may be sent to queue pairs of any, and is decoded as one of RC.
    CongestionNotification,
    /// A request over a reliable connection that no queue pair executes, by its opcode: SEND with invalidate, FLUSH,
    /// ATOMIC WRITE. The bytes after the base header are ignored.
    NotOffered(u8),
}

impl Operation {
    /// Returns whether the packet is a response.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        matches!(self, Self::ReadResponse(..) | Self::AtomicAcknowledge(..) | Self::Acknowledge(_))
    }

    /// Returns whether a connected queue pair paces these packets after congestion notifications: data and requests.
    #[must_use]
    pub const fn is_paced(&self) -> bool {
        !matches!(
            self,
            Self::Acknowledge(_)
                | Self::AtomicAcknowledge(..)
                | Self::Datagram(..)
                | Self::CongestionNotification
        )
    }
}

/// A packet without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The transport: the upper bits of the opcode.
    pub transport: QpType,
    /// The rest of the opcode, and the extended headers.
    pub operation: Operation,
    /// Whether the packet requests a solicited event at the receiver.
    pub solicited: bool,
    /// Whether the packet requests an acknowledgement.
    pub ack_req: bool,
    /// The destination queue pair, 24 bits.
    pub dest_qpn: u32,
    /// The sequence number.
    pub psn: Psn,
}

impl Packet {
    /// Returns the opcode of the BTH (IBA volume 1, table 38).
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        const fn of_message(first: u8, segment: Segment, has_imm: bool) -> u8 {
            match segment {
                Segment::First => first,
                Segment::Middle => first + 1,
                Segment::Last => first + 2 + has_imm as u8,
                Segment::Only => first + 4 + has_imm as u8,
            }
        }
        let transport = match self.transport {
            _ if matches!(self.operation, Operation::CongestionNotification) => 0x80,
            QpType::Uc => 0x20,
            QpType::Ud => 0x60,
            _ => 0x00,
        };
        transport
            | match self.operation {
                Operation::Send(segment, imm_be) => of_message(0x00, segment, imm_be.is_some()),
                Operation::Write(segment, _, imm_be) => of_message(0x06, segment, imm_be.is_some()),
                Operation::ReadRequest(_) => 0x0c,
                Operation::ReadResponse(Segment::First, _) => 0x0d,
                Operation::ReadResponse(Segment::Middle, _) => 0x0e,
                Operation::ReadResponse(Segment::Last, _) => 0x0f,
                Operation::ReadResponse(Segment::Only, _) => 0x10,
                Operation::Acknowledge(_) => 0x11,
                Operation::AtomicAcknowledge(..) => 0x12,
                Operation::AtomicRequest(AtomicEth { op: AtomicOp::CompareSwap { .. }, .. }) => 0x13,
                Operation::AtomicRequest(AtomicEth { op: AtomicOp::FetchAdd { .. }, .. }) => 0x14,
                Operation::CongestionNotification => 0x01,
                Operation::Datagram(_, imm_be) => of_message(0x00, Segment::Only, imm_be.is_some()),
                Operation::NotOffered(opcode) => opcode,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_those_of_the_specification() {
        let opcode = |transport, operation| {
            let psn = Psn::default();
            Packet { transport, operation, solicited: false, ack_req: false, dest_qpn: 2, psn }.opcode()
        };
        let deth = Deth { qkey: 1, src_qpn: 2 };
        assert_eq!(opcode(QpType::Rc, Operation::Send(Segment::Last, Some(1))), 0x03);
        assert_eq!(opcode(QpType::Uc, Operation::Write(Segment::Only, None, None)), 0x2a);
        assert_eq!(opcode(QpType::Uc, Operation::Write(Segment::Only, None, Some(1))), 0x2b);
        assert_eq!(opcode(QpType::Ud, Operation::Datagram(deth, Some(1))), 0x65);
        assert_eq!(opcode(QpType::Rc, Operation::ReadResponse(Segment::Only, None)), 0x10);
    }

    #[test]
    fn atomics_compute() {
        assert_eq!(AtomicOp::FetchAdd { add: 2 }.apply(u64::MAX), 1);
        assert_eq!(AtomicOp::CompareSwap { compare: 1, swap: 9 }.apply(1), 9);
        assert_eq!(AtomicOp::CompareSwap { compare: 1, swap: 9 }.apply(2), 2);
    }
}
