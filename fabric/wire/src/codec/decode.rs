//! Decoding of packets. All input is untrusted: each length is checked before use.

use farcall_verbs::{QpType, RnrTimer};

use super::{
    AETH_BYTES, ATOMIC_ACK_BYTES, ATOMIC_ETH_BYTES, BTH_BYTES, CNP, CNP_BYTES, DETH_BYTES, ICRC_BYTES,
    IMM_BYTES, PKEY, RETH_BYTES, UC, UD,
};
use crate::packet::{Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Reth, Segment, Syndrome};
use crate::psn::Psn;

/// Reason why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end within their headers or their padding.
    #[error("the datagram ends before its headers and padding")]
    Short,
    /// No supported transport has this opcode.
    #[error("the opcode {0:#04x} is not offered")]
    Opcode(u8),
    /// The version of the transport header is not 0.
    #[error("the transport header has version {0}; 0 is known")]
    Version(u8),
    /// The packet belongs to another partition.
    #[error("the partition key {0:#06x} is not ours")]
    Partition(u16),
    /// The specification reserves this syndrome.
    #[error("the syndrome {0:#04x} is reserved")]
    Syndrome(u8),
}

/// Reads fields from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    fn reth(&mut self) -> Result<Reth, Malformed> {
        Ok(Reth { addr: self.u64()?, rkey: self.u32()?, len_bytes: self.u32()? })
    }

    fn aeth(&mut self) -> Result<Aeth, Malformed> {
        let word = self.u32()?;
        let (syndrome, msn) = ((word >> 24) as u8, word & 0x00FF_FFFF);
        let syndrome = match (syndrome >> 5, syndrome & 0x1F) {
            (0, _) => Syndrome::Ack,
            (1, timer) => Syndrome::Rnr(RnrTimer(timer)),
            (3, 0) => Syndrome::Nak(Nak::PsnSequence),
            (3, 1) => Syndrome::Nak(Nak::InvalidRequest),
            (3, 2) => Syndrome::Nak(Nak::RemoteAccess),
            (3, 3) => Syndrome::Nak(Nak::RemoteOperation),
            _ => return Err(Malformed::Syndrome(syndrome)),
        };
        Ok(Aeth { syndrome, msn })
    }

    fn atomic(&mut self, is_swap: bool) -> Result<AtomicEth, Malformed> {
        let (addr, rkey, swap_add, compare) = (self.u64()?, self.u32()?, self.u64()?, self.u64()?);
        let op = if is_swap {
            AtomicOp::CompareSwap { compare, swap: swap_add }
        } else {
            AtomicOp::FetchAdd { add: swap_add }
        };
        Ok(AtomicEth { addr, rkey, op })
    }

    fn imm(&mut self, has_imm: bool) -> Result<Option<u32>, Malformed> {
        if has_imm { self.take().map(|bytes| Some(u32::from_ne_bytes(bytes))) } else { Ok(None) }
    }
}

/// Returns the segment of the `nth` of the six opcodes of SEND or WRITE, and whether it has immediate data.
const fn segment_of(nth: u8) -> (Segment, bool) {
    match nth {
        0 => (Segment::First, false),
        1 => (Segment::Middle, false),
        2 | 3 => (Segment::Last, nth == 3),
        _ => (Segment::Only, nth == 5),
    }
}

fn operation(opcode: u8, from: &mut Reader<'_>) -> Result<(QpType, Operation), Malformed> {
    let connected = |transport, nth: u8, is_write: bool, from: &mut Reader<'_>| {
        let (segment, has_imm) = segment_of(nth);
        let operation = if is_write {
            let reth = if segment.is_first() { Some(from.reth()?) } else { None };
            Operation::Write(segment, reth, from.imm(has_imm)?)
        } else {
            Operation::Send(segment, from.imm(has_imm)?)
        };
        Ok((transport, operation))
    };
    let operation = match opcode {
        0x00..=0x05 => return connected(QpType::Rc, opcode, false, from),
        0x06..=0x0b => return connected(QpType::Rc, opcode - 0x06, true, from),
        0x20..=0x25 => return connected(QpType::Uc, opcode - UC, false, from),
        0x26..=0x2b => return connected(QpType::Uc, opcode - UC - 0x06, true, from),
        0x64 | 0x65 => {
            let deth = Deth { qkey: from.u32()?, src_qpn: from.u32()? & 0x00FF_FFFF };
            return Ok((QpType::Ud, Operation::Datagram(deth, from.imm(opcode == UD + 5)?)));
        }
        0x0c => Operation::ReadRequest(from.reth()?),
        0x0d => Operation::ReadResponse(Segment::First, Some(from.aeth()?)),
        0x0e => Operation::ReadResponse(Segment::Middle, None),
        0x0f => Operation::ReadResponse(Segment::Last, Some(from.aeth()?)),
        0x10 => Operation::ReadResponse(Segment::Only, Some(from.aeth()?)),
        0x11 => Operation::Acknowledge(from.aeth()?),
        0x12 => Operation::AtomicAcknowledge(from.aeth()?, from.u64()?),
        // SEND last and only with invalidate, FLUSH, ATOMIC WRITE: these must be rejected, not dropped.
        0x16 | 0x17 | 0x1c | 0x1d => Operation::NotOffered(opcode),
        0x13 | 0x14 => Operation::AtomicRequest(from.atomic(opcode == 0x13)?),
        CNP => {
            from.take::<CNP_BYTES>()?;
            Operation::CongestionNotification
        }
        _ => return Err(Malformed::Opcode(opcode)),
    };
    Ok((QpType::Rc, operation))
}

/// Parses a packet and its payload from a datagram whose CRC was checked ([`super::icrc`]).
///
/// # Errors
/// Returns the reason if it is not a valid packet.
pub fn decode(datagram: &[u8]) -> Result<(Packet, &[u8]), Malformed> {
    let len_bytes = datagram.len().checked_sub(ICRC_BYTES).ok_or(Malformed::Short)?;
    let mut from = Reader(&datagram[..len_bytes]);
    let [opcode, flags, pkey @ ..] = from.take::<4>()?;
    let (dest_qpn, word) = (from.u32()? & 0x00FF_FFFF, from.u32()?);
    if flags & 0x0F != 0 {
        return Err(Malformed::Version(flags & 0x0F));
    }
    let pkey = u16::from_be_bytes(pkey);
    // The highest bit indicates full membership.
    if pkey & 0x7FFF != PKEY & 0x7FFF {
        return Err(Malformed::Partition(pkey));
    }
    let (transport, operation) = operation(opcode, &mut from)?;
    let pad_bytes = usize::from(flags >> 4 & 3);
    let payload_bytes = from.0.len().checked_sub(pad_bytes).ok_or(Malformed::Short)?;
    let packet = Packet {
        transport,
        operation,
        solicited: flags & 0x80 != 0,
        ack_req: word >> 31 == 1,
        dest_qpn,
        psn: Psn::new(word),
    };
    Ok((packet, &from.0[..payload_bytes]))
}

/// Returns the destination queue pair of a datagram; `None` if the datagram is too short.
#[must_use]
pub fn dest_qpn_of(datagram: &[u8]) -> Option<u32> {
    let [_, a, b, c] = datagram.get(4..BTH_BYTES)?.first_chunk()?;
    Some(u32::from_be_bytes([0, *a, *b, *c]))
}

const _: () = assert!(
    ATOMIC_ETH_BYTES >= RETH_BYTES + IMM_BYTES
        && ATOMIC_ETH_BYTES >= DETH_BYTES + IMM_BYTES
        && ATOMIC_ETH_BYTES >= AETH_BYTES + ATOMIC_ACK_BYTES
        && ATOMIC_ETH_BYTES >= CNP_BYTES
);
