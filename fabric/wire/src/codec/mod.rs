//! Encoding of packets: the contents of a RoCEv2 UDP datagram (IBA volume 1, chapter 9 and annex A17).
//!
//! A datagram consists of the BTH, the extended headers of its opcode, payload, padding to a multiple of four, and the
//! invariant CRC ([`icrc`]), which also covers parts of the IP and UDP headers.

mod decode;
mod encode;
pub mod icrc;

pub use decode::{Malformed, decode, dest_qpn_of};
pub use encode::encode;

/// The UDP port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
/// Length in bytes of the invariant CRC after the padding.
pub const ICRC_BYTES: usize = 4;
/// Length in bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Maximum length of all headers in bytes: BTH and AtomicETH.
pub const HEADERS_BYTES_MAX: usize = BTH_BYTES + ATOMIC_ETH_BYTES;

const RETH_BYTES: usize = 16;
const DETH_BYTES: usize = 8;
const AETH_BYTES: usize = 4;
const ATOMIC_ETH_BYTES: usize = 28;
const ATOMIC_ACK_BYTES: usize = 8;
const IMM_BYTES: usize = 4;
/// Reserved bytes after the BTH of a CNP (annex A17.9.3).
const CNP_BYTES: usize = 16;

/// The default partition with full membership, the only one of software devices.
const PKEY: u16 = 0xFFFF;

const UC: u8 = 0x20;
const UD: u8 = 0x60;
const CNP: u8 = 0x81;

/// Returns the number of padding bytes after a payload.
#[must_use]
pub const fn pad_bytes(payload_bytes: usize) -> usize {
    payload_bytes.wrapping_neg() & 3
}

#[cfg(test)]
mod tests;
