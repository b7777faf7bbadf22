//! Captures, read by an independent library and checked byte by byte.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use farcall_wire::Packet;
use farcall_wire::codec::decode;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};

/// An interface and its statistics.
#[derive(Default)]
pub struct Interface {
    pub name: String,
    pub description: String,
    pub comment: String,
    pub received: u64,
    pub dropped: u64,
}

pub struct Frame {
    pub interface: usize,
    pub ns: u128,
    pub is_out: bool,
    /// Length of the complete frame in bytes.
    pub len_bytes: usize,
    pub bytes: Vec<u8>,
}

pub struct Capture {
    pub interfaces: Vec<Interface>,
    pub frames: Vec<Frame>,
}

/// A RoCEv2 packet and its frame.
#[derive(Debug, PartialEq)]
pub struct Received {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub ports: [u16; 2],
    pub packet: Packet,
    pub payload: Vec<u8>,
}

pub fn read(path: &Path) -> Capture {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut capture = Capture { interfaces: Vec::new(), frames: Vec::new() };
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(block) => {
                let mut interface = Interface::default();
                for option in &block.options {
                    match option {
                        InterfaceDescriptionOption::IfName(text) => interface.name = text.to_string(),
                        InterfaceDescriptionOption::IfDescription(text) => {
                            interface.description = text.to_string();
                        }
                        InterfaceDescriptionOption::Comment(text) => interface.comment = text.to_string(),
                        _ => {}
                    }
                }
                capture.interfaces.push(interface);
            }
            Block::EnhancedPacket(block) => {
                let flags = block.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Flags(flags) => Some(*flags),
                    _ => None,
                });
                capture.frames.push(Frame {
                    interface: block.interface_id as usize,
                    ns: block.timestamp.as_nanos(),
                    is_out: flags.unwrap() == 2,
                    len_bytes: block.original_len as usize,
                    bytes: block.data.to_vec(),
                });
            }
            Block::InterfaceStatistics(block) => {
                let interface = &mut capture.interfaces[block.interface_id as usize];
                for option in &block.options {
                    match option {
                        InterfaceStatisticsOption::IsbIfRecv(count) => interface.received = *count,
                        InterfaceStatisticsOption::IsbIfDrop(count) => interface.dropped = *count,
                        _ => {}
                    }
                }
            }
            other => panic!("a block that no capture has: {other:?}"),
        }
    }
    capture
}

fn sum(words: &[u8]) -> u32 {
    let whole: u32 = words
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or_default()))
        .sum();
    (whole & 0xFFFF) + (whole >> 16)
}

/// Checks lengths, checksums and the invariant CRC of a frame, each by its own definition.
pub fn check(frame: &Frame) -> Received {
    let bytes = &frame.bytes;
    assert_eq!(bytes.len(), frame.len_bytes, "the frame is cut");
    let is_v4 = bytes[12..14] == [0x08, 0x00];
    assert!(is_v4 || bytes[12..14] == [0x86, 0xDD]);
    let ip_bytes = if is_v4 { 20 } else { 40 };
    let (ip, udp) = bytes[14..].split_at(ip_bytes);
    let (src, dst, addresses): (IpAddr, IpAddr, _) = if is_v4 {
        let octets = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        assert_eq!(sum(ip), 0xFFFF, "the checksum of IPv4");
        (octets(12).into(), octets(16).into(), &ip[12..20])
    } else {
        let octets = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
        (octets(8).into(), octets(24).into(), &ip[8..40])
    };
    let number = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    assert_eq!(usize::from(number(4)), udp.len());
    let mut covered = addresses.to_vec();
    covered.extend([0, 17, udp[4], udp[5]]);
    covered.extend(udp);
    let folded = sum(&covered);
    assert_eq!((folded & 0xFFFF) + (folded >> 16), 0xFFFF, "the checksum of UDP");
    // IBA annex A17.3.3: fields that routers change are replaced by ones.
    let mut masked = bytes[14..].to_vec();
    if is_v4 {
        [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xFF);
    } else {
        masked[0] |= 0x0F;
        [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xFF);
    }
    [6, 7, 8 + 4].into_iter().for_each(|at| masked[ip_bytes + at] = 0xFF);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xFF; 8]);
    crc.update(&masked[..masked.len() - 4]);
    assert_eq!(masked[masked.len() - 4..], crc.finalize().to_le_bytes(), "the invariant CRC");
    let (packet, payload) = decode(&udp[8..]).unwrap();
    Received { src, dst, ports: [number(0), number(2)], packet, payload: payload.to_vec() }
}
