//! The invariant CRC (IBA annex A17.3.3): a CRC-32 over all fields that no router changes.
//!
//! It covers the IPv4 identification, which UDP sockets can neither set nor read. A Farcall sender uses 0, the value
//! that an unconnected socket sends if fragmentation is forbidden. Datagrams that the kernel cuts out of one buffer
//! (UDP_SEGMENT) have consecutive identifications. The identification of another sender is derived from the CRC: since
//! the CRC is linear, at most one identification explains the difference to 0. A corrupted packet is mistaken for one
//! with another identification with probability 2^-16. The UDP checksum is checked in addition, if the sender has set
//! it.

use std::net::IpAddr;

use crc32fast::Hasher;

use super::{BTH_BYTES, ICRC_BYTES};

const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Offset of the IPv4 identification, after the eight bytes of ones.
const IDENTIFICATION_AT: usize = 8 + 4;
/// CRC-32, lowest bit first.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Source and destination of a datagram according to its IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address. Both addresses are of one family.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port.
    pub dst_port: u16,
}

/// The bytes that the CRC covers before a datagram's own data: eight bytes of ones, the IP header, the UDP header, the
/// BTH. Datagrams of one flow and one length differ only in the identification and the BTH.
#[derive(Clone, Copy, Debug)]
pub struct IcrcInput {
    bytes: [u8; 8 + IPV6_BYTES + UDP_BYTES + BTH_BYTES],
    len_bytes: usize,
    is_v4: bool,
    datagram_bytes: usize,
}

impl IcrcInput {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len_bytes..][..bytes.len()].copy_from_slice(bytes);
        self.len_bytes += bytes.len();
    }

    /// Creates the covered bytes for datagrams with `datagram_bytes` after the UDP header, CRC included.
    #[must_use]
    pub fn new(flow: &Flow, datagram_bytes: usize) -> Self {
        let is_v4 = matches!((flow.src, flow.dst), (IpAddr::V4(_), IpAddr::V4(_)));
        let mut covered = Self { bytes: [0xFF; _], len_bytes: 8, is_v4, datagram_bytes };
        let udp_bytes = (UDP_BYTES + datagram_bytes) as u16;
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let [high, low] = (IPV4_BYTES as u16).wrapping_add(udp_bytes).to_be_bytes();
                // Version and header length, type of service, total length; identification; don't fragment; time to
                // live, protocol, checksum.
                covered.put(&[0x45, 0xFF, high, low, 0, 0, 0x40, 0, 0xFF, 17, 0xFF, 0xFF]);
                covered.put(&src.octets());
                covered.put(&dst.octets());
            }
            (src, dst) => {
                let octets = |address| match address {
                    IpAddr::V6(address) => address.octets(),
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                };
                let [high, low] = udp_bytes.to_be_bytes();
                // Version, traffic class and flow label; payload length; next header, hop limit.
                covered.put(&[0x6F, 0xFF, 0xFF, 0xFF, high, low, 17, 0xFF]);
                covered.put(&octets(src));
                covered.put(&octets(dst));
            }
        }
        covered.put(&flow.src_port.to_be_bytes());
        covered.put(&flow.dst_port.to_be_bytes());
        covered.put(&udp_bytes.to_be_bytes());
        covered.put(&[0xFF, 0xFF]);
        covered.put(&[0; BTH_BYTES]);
        covered
    }

    /// Returns the CRC of a datagram whose last four bytes are reserved for it, as stored there; `None` if the datagram
    /// has another length, or is too short for a packet.
    fn compute(&mut self, identification: u16, datagram: &[u8]) -> Option<u32> {
        let (bth, rest) = datagram.split_first_chunk::<BTH_BYTES>()?;
        let rest = &rest[..rest.len().checked_sub(ICRC_BYTES)?];
        if datagram.len() != self.datagram_bytes {
            return None;
        }
        if self.is_v4 {
            self.bytes[IDENTIFICATION_AT..][..2].copy_from_slice(&identification.to_be_bytes());
        }
        let of_bth = self.bytes[..self.len_bytes].last_chunk_mut()?;
        *of_bth = *bth;
        // Routers set congestion marks.
        of_bth[4] = 0xFF;
        let mut crc = Hasher::new();
        crc.update(&self.bytes[..self.len_bytes]);
        crc.update(rest);
        Some(crc.finalize())
    }

    /// Writes the CRC into the last four bytes of a datagram that is sent with this IPv4 identification. Does nothing
    /// if the datagram has another length, or is too short for a packet.
    pub fn seal(&mut self, identification: u16, datagram: &mut [u8]) {
        if let (Some(crc), Some(place)) = (self.compute(identification, datagram), datagram.last_chunk_mut())
        {
            *place = crc.to_le_bytes();
        }
    }

    /// Returns whether the CRC of a datagram is correct, for some identification if it was received over IPv4. It is
    /// faster if the identification is the expected one.
    #[must_use]
    pub fn is_sound(&mut self, expected: u16, datagram: &[u8]) -> bool {
        self.identification(expected, datagram).is_some()
    }

    /// Returns the IPv4 identification for which the CRC of a datagram is correct, 0 for IPv6; `None` if the CRC is
    /// wrong.
    fn identification(&mut self, expected: u16, datagram: &[u8]) -> Option<[u8; 2]> {
        let (crc, found) = (self.compute(expected, datagram)?, datagram.last_chunk()?);
        let expected = if self.is_v4 { expected.to_be_bytes() } else { [0; 2] };
        let difference = crc ^ u32::from_le_bytes(*found);
        if difference == 0 {
            return Some(expected);
        }
        // Number of covered bytes after the identification.
        let behind = 8 + IPV4_BYTES + UDP_BYTES + datagram.len() - ICRC_BYTES - IDENTIFICATION_AT - 2;
        let [high, low] = preceding_difference(difference, behind).filter(|_| self.is_v4)?;
        Some([expected[0] ^ high, expected[1] ^ low])
    }
}

/// Like [`IcrcInput::seal`], with the identification 0.
pub fn seal(flow: &Flow, datagram: &mut [u8]) {
    IcrcInput::new(flow, datagram.len()).seal(0, datagram);
}

/// Like [`IcrcInput::is_sound`].
#[must_use]
pub fn is_sound(flow: &Flow, datagram: &[u8]) -> bool {
    identification(flow, datagram).is_some()
}

/// Returns the IPv4 identification for which the CRC of a datagram is correct, 0 for IPv6; `None` if the CRC is wrong.
#[must_use]
pub fn identification(flow: &Flow, datagram: &[u8]) -> Option<[u8; 2]> {
    IcrcInput::new(flow, datagram.len()).identification(0, datagram)
}

/// Returns the XOR of the two bytes that, followed by `behind` equal bytes, explains this difference of CRCs. The CRC
/// register is stepped back over the bytes after them, then over the two bytes. They explain the difference if only
/// their own 16 bits remain.
pub(super) fn preceding_difference(difference: u32, behind: usize) -> Option<[u8; 2]> {
    let after_identification = multiply(difference, inverse_of_bytes(behind));
    let before_identification = (0..16).fold(after_identification, |state, _| step_back(state));
    let [first, second, 0, 0] = before_identification.to_le_bytes() else { return None };
    Some([first, second])
}

/// Returns the state of the register one bit earlier.
const fn step_back(state: u32) -> u32 {
    // The highest bit of the polynomial is set, so the highest bit of the state indicates whether the polynomial was
    // added.
    if state >> 31 == 1 { (state ^ POLYNOMIAL) << 1 | 1 } else { state << 1 }
}

/// Returns the product of two polynomials modulo the CRC's, in its bit order: the highest bit is the power 0.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut a, mut product, mut at) = (a, 0, 0);
    while at < 32 {
        if b << at >> 31 == 1 {
            product ^= a;
        }
        a = if a & 1 == 1 { a >> 1 ^ POLYNOMIAL } else { a >> 1 };
        at += 1;
    }
    product
}

/// x^-8, x^-16, x^-32, …: factors that step back 1, 2, 4, … bytes.
const INVERSES: [u32; 17] = {
    let mut inverses = [0; 17];
    let (mut inverse, mut at) = (1 << 31, 0);
    while at < 8 {
        inverse = step_back(inverse);
        at += 1;
    }
    at = 0;
    while at < inverses.len() {
        inverses[at] = inverse;
        inverse = multiply(inverse, inverse);
        at += 1;
    }
    inverses
};

fn inverse_of_bytes(bytes: usize) -> u32 {
    let chosen = INVERSES.iter().enumerate().filter(|(at, _)| bytes >> at & 1 == 1);
    chosen.fold(1 << 31, |product, (_, inverse)| multiply(product, *inverse))
}
