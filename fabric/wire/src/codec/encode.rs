//! Encoding of packets.

use super::{BTH_BYTES, CNP_BYTES, HEADERS_BYTES_MAX, PKEY, pad_bytes};
use crate::packet::{Aeth, AtomicEth, AtomicOp, Nak, Operation, Packet, Reth, Syndrome};

/// Unlimited credits (IBA table 46): a responder without a receive sends an RNR NAK instead.
const UNLIMITED_CREDITS: u8 = 0x1F;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;
/// Path migration state: migrated, which is the state of queue pairs without an alternate path.
const MIGRATED: u8 = 0x40;
const SOLICITED: u8 = 0x80;
const ACK_REQUEST: u8 = 0x80;
/// Backward explicit congestion notification, in the word of the destination QP (annex A17.9.3).
const BECN: u32 = 0x40 << 24;

/// Writes fields to the front of an array.
struct Writer<'a> {
    bytes: &'a mut [u8; HEADERS_BYTES_MAX],
    len_bytes: usize,
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.len_bytes..][..field.len()].copy_from_slice(field);
        self.len_bytes += field.len();
    }

    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    fn put_reth(&mut self, reth: Reth) {
        self.put_u64(reth.addr);
        self.put_u32(reth.rkey);
        self.put_u32(reth.len_bytes);
    }

    fn put_aeth(&mut self, aeth: Aeth) {
        let syndrome = match aeth.syndrome {
            Syndrome::Ack => UNLIMITED_CREDITS,
            Syndrome::Rnr(timer) => RNR_NAK | (timer.0 & 0x1F),
            Syndrome::Nak(nak) => NAK | code(nak),
        };
        self.put_u32(u32::from(syndrome) << 24 | (aeth.msn & 0x00FF_FFFF));
    }

    fn put_atomic(&mut self, eth: AtomicEth) {
        let (swap_add, compare) = match eth.op {
            AtomicOp::CompareSwap { compare, swap } => (swap, compare),
            AtomicOp::FetchAdd { add } => (add, 0),
        };
        self.put_u64(eth.addr);
        self.put_u32(eth.rkey);
        self.put_u64(swap_add);
        self.put_u64(compare);
    }

    /// Writes immediate data, which is in network byte order already.
    fn put_imm(&mut self, imm_be: Option<u32>) {
        if let Some(imm_be) = imm_be {
            self.put(&imm_be.to_ne_bytes());
        }
    }
}

const fn code(nak: Nak) -> u8 {
    match nak {
        Nak::PsnSequence => 0,
        Nak::InvalidRequest => 1,
        Nak::RemoteAccess => 2,
        Nak::RemoteOperation => 3,
    }
}

/// Writes the headers of a packet with a payload of `payload_bytes`, and returns their length. Payload, padding
/// ([`pad_bytes`]) and CRC follow them.
pub fn encode(packet: &Packet, payload_bytes: usize, headers: &mut [u8; HEADERS_BYTES_MAX]) -> usize {
    let mut to = Writer { bytes: headers, len_bytes: 0 };
    let solicited = if packet.solicited { SOLICITED } else { 0 };
    let ack_req = if packet.ack_req { ACK_REQUEST } else { 0 };
    let (migrated, becn) = match packet.operation {
        Operation::CongestionNotification => (0, BECN),
        _ => (MIGRATED, 0),
    };
    to.put(&[packet.opcode(), solicited | migrated | (pad_bytes(payload_bytes) as u8) << 4]);
    to.put(&PKEY.to_be_bytes());
    to.put_u32(becn | packet.dest_qpn & 0x00FF_FFFF);
    to.put_u32(u32::from(ack_req) << 24 | packet.psn.number());
    debug_assert_eq!(to.len_bytes, BTH_BYTES);
    match packet.operation {
        Operation::Send(_, imm_be) => to.put_imm(imm_be),
        Operation::NotOffered(_) => {}
        Operation::Write(_, reth, imm_be) => {
            reth.into_iter().for_each(|reth| to.put_reth(reth));
            to.put_imm(imm_be);
        }
        Operation::ReadRequest(reth) => to.put_reth(reth),
        Operation::AtomicRequest(eth) => to.put_atomic(eth),
        Operation::ReadResponse(_, aeth) => aeth.into_iter().for_each(|aeth| to.put_aeth(aeth)),
        Operation::AtomicAcknowledge(aeth, found) => {
            to.put_aeth(aeth);
            to.put_u64(found);
        }
        Operation::Acknowledge(aeth) => to.put_aeth(aeth),
        Operation::CongestionNotification => to.put(&[0; CNP_BYTES]),
        Operation::Datagram(deth, imm_be) => {
            to.put_u32(deth.qkey);
            to.put_u32(deth.src_qpn & 0x00FF_FFFF);
            to.put_imm(imm_be);
        }
    }
    to.len_bytes
}
