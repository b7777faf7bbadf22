//! The 40 bytes before the payload of a received datagram: a global route header (IBA 8.3), which has the format of an
//! IPv6 header. Over IPv4 it is 20 undefined bytes followed by the IPv4 header (IBA annex A17.4.5.2).

use std::net::Ipv4Addr;

use crate::Gid;

/// Length in bytes of the header before a received datagram (`struct ibv_grh`).
pub const ROUTE_HEADER_BYTES: usize = 40;

const IPV4_AT: usize = 20;
const IPV4_BYTES: usize = ROUTE_HEADER_BYTES - IPV4_AT;
const CHECKSUM_AT: usize = 10;
/// Version 4, header length of five 32-bit words.
const IPV4_BEGIN: u8 = 0x45;
const DONT_FRAGMENT: u8 = 0x40;
const HOPS: u8 = 64;
const UDP: u8 = 17;

/// Source and destination of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedRoute {
    /// GID of the sender.
    pub source: Gid,
    /// GID of the receiver.
    pub destination: Gid,
    /// The traffic class; over IPv4 the type of service.
    pub traffic_class: u8,
}

impl ReceivedRoute {
    /// Parses a route header. The header is taken as IPv4 if the IPv4 checksum is correct, as in rdma-core, because the
    /// 20 bytes before it may have any value.
    #[must_use]
    pub fn of(header: &[u8; ROUTE_HEADER_BYTES]) -> Self {
        let gid = |at: usize| Gid(*header[at..].first_chunk().expect("a GID is inside of the header"));
        let v4 =
            |at: usize| Gid::from_ipv4(Ipv4Addr::from(*header[at..].first_chunk::<4>().expect("inside")));
        if header[IPV4_AT] == IPV4_BEGIN && sum(&header[IPV4_AT..]) == 0xFFFF {
            let traffic_class = header[IPV4_AT + 1];
            return Self { source: v4(IPV4_AT + 12), destination: v4(IPV4_AT + 16), traffic_class };
        }
        let traffic_class = header[0] << 4 | header[1] >> 4;
        Self { source: gid(8), destination: gid(24), traffic_class }
    }
}

/// Returns the route header of a datagram received over IPv4. `udp_bytes` is the length of the UDP header and payload.
#[must_use]
pub fn ipv4_route_header(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    udp_bytes: usize,
) -> [u8; ROUTE_HEADER_BYTES] {
    let mut header = [0; ROUTE_HEADER_BYTES];
    let v4 = &mut header[IPV4_AT..];
    v4[0] = IPV4_BEGIN;
    v4[2..4].copy_from_slice(&((IPV4_BYTES + udp_bytes) as u16).to_be_bytes());
    (v4[6], v4[8], v4[9]) = (DONT_FRAGMENT, HOPS, UDP);
    v4[12..16].copy_from_slice(&source.octets());
    v4[16..20].copy_from_slice(&destination.octets());
    let checksum = !sum(v4);
    v4[CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// Returns the ones' complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let sum =
        bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    ((folded & 0xFFFF) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_is_what_the_internet_writes() {
        let (source, destination) = (Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 0, 199));
        let header = ipv4_route_header(source, destination, 95);
        assert_eq!(header[..20], [0; 20]);
        // The example of RFC 1071's explanations, with another identification: 0x45, length 0x73, DF, 64 hops, UDP.
        assert_eq!(header[20..32], [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 17, 0xB8, 0x61]);
        let (source, destination) = (Gid::from_ipv4(source), Gid::from_ipv4(destination));
        assert_eq!(ReceivedRoute::of(&header), ReceivedRoute { source, destination, traffic_class: 0 });
    }

    #[test]
    fn without_a_right_checksum_it_is_a_global_header() {
        let mut header = ipv4_route_header(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 32);
        (header[0], header[1], header[30]) = (0x6A, 0xB0, header[30] ^ 1);
        let route = ReceivedRoute::of(&header);
        assert_eq!((route.traffic_class, &route.destination.0[..]), (0xAB, &header[24..]));
    }
}
