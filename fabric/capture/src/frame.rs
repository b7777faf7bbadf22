//! Ethernet, IP and UDP headers around a RoCEv2 packet. Programs do not see the real ones. These are generated so that
//! they match the packet's invariant CRC, which covers parts of them.

use std::net::IpAddr;

use farcall_wire::codec::icrc::Flow;

const UDP: u8 = 17;
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const HOPS: u8 = 64;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xDD];

/// Returns the ones' complement sum of 16-bit words (RFC 1071).
fn sum(words: &[u8], before: u32) -> u32 {
    let (pairs, last) = words.as_chunks::<2>();
    let mut sum = u64::from(before);
    for pair in pairs {
        sum += u64::from(u16::from_be_bytes(*pair));
    }
    sum += last.first().map_or(0, |byte| u64::from(*byte) << 8);
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u32
}

/// Returns an Ethernet address derived from an IP address: locally administered, unicast.
fn ethernet_address(address: IpAddr) -> [u8; 6] {
    let last = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    [0x02, 0xFC, last[0], last[1], last[2], last[3]]
}

fn octets(address: IpAddr, to: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => to.extend(address.octets()),
        IpAddr::V6(address) => to.extend(address.octets()),
    }
}

/// Appends a frame: headers, then the packet. `identification` is the IPv4 identification that the packet's CRC covers.
pub(crate) fn append(to: &mut Vec<u8>, flow: &Flow, identification: [u8; 2], datagram: &[u8]) {
    let udp_bytes = UDP_BYTES + datagram.len();
    to.extend(ethernet_address(flow.dst));
    to.extend(ethernet_address(flow.src));
    if flow.src.is_ipv4() {
        to.extend(TYPE_IPV4);
        let at = to.len();
        let whole_bytes = ((IPV4_BYTES + udp_bytes) as u16).to_be_bytes();
        to.extend([0x45, 0, whole_bytes[0], whole_bytes[1], identification[0], identification[1], 0x40, 0]);
        to.extend([HOPS, UDP, 0, 0]);
        octets(flow.src, to);
        octets(flow.dst, to);
        let checksum = !(sum(&to[at..], 0) as u16);
        to[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        to.extend(TYPE_IPV6);
        let payload_bytes = (udp_bytes as u16).to_be_bytes();
        to.extend([0x60, 0, 0, 0, payload_bytes[0], payload_bytes[1], UDP, HOPS]);
        octets(flow.src, to);
        octets(flow.dst, to);
    }
    // The pseudo-header that the checksum covers in addition to the datagram: addresses, protocol and length.
    let addresses_bytes = if flow.src.is_ipv4() { 8 } else { 32 };
    let pseudo = sum(&to[to.len() - addresses_bytes..], u32::from(UDP) + udp_bytes as u32);
    let at = to.len();
    to.extend(flow.src_port.to_be_bytes());
    to.extend(flow.dst_port.to_be_bytes());
    to.extend((udp_bytes as u16).to_be_bytes());
    to.extend([0, 0]);
    to.extend(datagram);
    let checksum = match !(sum(&to[at..], pseudo) as u16) {
        // Zero would mean that there is no checksum.
        0 => 0xFFFF,
        checksum => checksum,
    };
    to[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram whose checksums tcpdump and Wireshark have verified as correct.
    #[test]
    fn headers_sum_to_all_ones() {
        let ends = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]];
        for [src, dst] in ends {
            let [src, dst] = [src, dst].map(|text| text.parse::<IpAddr>().unwrap());
            let flow = Flow { src, dst, src_port: 0xC001, dst_port: 4791 };
            for len_bytes in [16, 17, 4100] {
                let mut frame = Vec::new();
                append(&mut frame, &flow, [1, 2], &vec![0xA5; len_bytes]);
                let (ip_bytes, addresses) = if src.is_ipv4() { (20, 12..20) } else { (40, 8..40) };
                let ip = &frame[14..14 + ip_bytes];
                if src.is_ipv4() {
                    assert_eq!(sum(ip, 0), 0xFFFF);
                }
                let udp = &frame[14 + ip_bytes..];
                assert_eq!(udp.len(), 8 + len_bytes);
                let pseudo = sum(&ip[addresses], u32::from(UDP) + udp.len() as u32);
                assert_eq!(sum(udp, pseudo), 0xFFFF, "{src}, {len_bytes} bytes");
            }
        }
    }
}
