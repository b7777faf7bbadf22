//! The global route header that precedes every datagram in its receive (IBA 8.3).

use farcall_verbs::Gid;

/// Length of a global route header in bytes.
pub(super) const GRH_BYTES: usize = 40;

/// IBA next-header value: a base transport header follows.
const NEXT_HEADER_IBA: u8 = 0x1B;
const HOP_LIMIT: u8 = 64;
/// Length in bytes of the base and datagram transport headers and the invariant CRC, all of which the payload length
/// field counts.
const AROUND_PAYLOAD_BYTES: usize = 12 + 8 + 4;
const IMMEDIATE_BYTES: usize = 4;

/// Returns the header of a datagram with `len_bytes` of payload.
pub(super) fn grh(
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    len_bytes: usize,
    has_immediate: bool,
) -> [u8; GRH_BYTES] {
    let immediate = if has_immediate { IMMEDIATE_BYTES } else { 0 };
    let rest = len_bytes.next_multiple_of(4) + immediate + AROUND_PAYLOAD_BYTES;
    let mut header = [0; GRH_BYTES];
    (header[0], header[1]) = (6 << 4 | traffic_class >> 4, traffic_class << 4);
    header[4..6].copy_from_slice(&(rest as u16).to_be_bytes());
    (header[6], header[7]) = (NEXT_HEADER_IBA, HOP_LIMIT);
    header[8..24].copy_from_slice(&source.0);
    header[24..].copy_from_slice(&destination.0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_specifications_form() {
        let (source, destination) = (Gid([1; 16]), Gid([2; 16]));
        let header = grh(source, destination, 0xAB, 5, true);
        assert_eq!(header[..8], [0x6A, 0xB0, 0, 0, 0, 8 + 4 + 24, 0x1B, 64]);
        assert_eq!((&header[8..24], &header[24..]), (&source.0[..], &destination.0[..]));
        assert_eq!(grh(source, destination, 0, 4096, false)[4..6], (4096_u16 + 24).to_be_bytes());
    }
}
