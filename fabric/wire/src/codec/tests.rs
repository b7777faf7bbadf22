use std::net::{IpAddr, Ipv4Addr};

use farcall_verbs::{QpType, RnrTimer};
use proptest::prelude::*;

use super::icrc::{Flow, IcrcInput, identification, is_sound, seal};
use super::*;
use crate::packet::{Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Reth, Segment, Syndrome};
use crate::psn::Psn;

fn flow(src: &str, dst: &str, src_port: u16) -> Flow {
    Flow { src: src.parse().unwrap(), dst: dst.parse().unwrap(), src_port, dst_port: UDP_PORT }
}

/// The UC SEND of scapy's tests, whose ICRC was computed by hardware: 192.168.0.7 to itself, identification 1144.
const UC_SEND: [u8; 36] = *b"\x24\x60\xff\xff\x00\x00\x00\xd3\x00\xcf\x17\x10F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00\
                             \x78\xf3\x53\xf3";

#[test]
fn a_captured_packet_is_sound_and_decodes() {
    let flow = flow("192.168.0.7", "192.168.0.7", 49152);
    assert_eq!(identification(&flow, &UC_SEND), Some(1144_u16.to_be_bytes()));
    let (packet, payload) = decode(&UC_SEND).unwrap();
    assert_eq!((packet.transport, packet.operation), (QpType::Uc, Operation::Send(Segment::Only, None)));
    assert_eq!((packet.dest_qpn, packet.psn.number(), payload.len()), (211, 13_571_856, 18));
    let mut headers = [0; HEADERS_BYTES_MAX];
    assert_eq!(encode(&packet, payload.len(), &mut headers), BTH_BYTES);
    assert_eq!(headers[..BTH_BYTES], UC_SEND[..BTH_BYTES]);
}

/// The CNP that a ConnectX-4 Lx sent from 10.0.17.1 to 10.0.18.1: source port 0, identification 0x718c.
#[test]
fn the_crc_of_a_real_adapter_is_ours() {
    let mut cnp = [0; 32];
    cnp[..8].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18]);
    cnp[28..].copy_from_slice(&[0x82, 0xfd, 0x00, 0x2a]);
    assert!(is_sound(&flow("10.0.17.1", "10.0.18.1", 0), &cnp));
    let (packet, payload) = decode(&cnp).unwrap();
    assert_eq!((packet.operation, packet.dest_qpn), (Operation::CongestionNotification, 0x118));
    assert!(payload.is_empty());
    let mut headers = [0; HEADERS_BYTES_MAX];
    assert_eq!(encode(&packet, 0, &mut headers), 28);
    assert_eq!(headers[..28], cnp[..28]);
}

#[test]
fn every_corrupted_bit_of_our_own_packets_is_found() {
    let mut missed = 0;
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let flow = flow(src, dst, 49152);
        let mut datagram = vec![0x5A; 300];
        datagram[..BTH_BYTES].copy_from_slice(&UC_SEND[..BTH_BYTES]);
        seal(&flow, &mut datagram);
        assert!(is_sound(&flow, &datagram));
        for bit in 0..datagram.len() * 8 {
            datagram[bit / 8] ^= 1 << (bit % 8);
            let is_mark = bit / 8 == 4;
            missed += usize::from(is_sound(&flow, &datagram) != is_mark);
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert_eq!(missed, 0);
}

#[test]
fn another_address_or_port_makes_another_crc() {
    let ours = flow("10.0.0.1", "10.0.0.2", 49152);
    let mut datagram = UC_SEND;
    seal(&ours, &mut datagram);
    for other in [
        Flow { src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)), ..ours },
        Flow { src_port: 49153, ..ours },
        flow("fd00::1", "fd00::2", 49152),
    ] {
        assert!(!is_sound(&other, &datagram), "{other:?}");
    }
}

#[test]
fn finds_every_ipv4_identification() {
    // Compute the CRC as a sender with that identification does: over the two bytes at their offset.
    for id in [0_u16, 1, 0x8000, 0x1234, 0xFFFF, 0x0478] {
        for behind in [40, 56, 57, 4200] {
            let crc = |id: [u8; 2]| {
                let mut crc = crc32fast::Hasher::new();
                crc.update(&id);
                crc.update(&vec![7; behind]);
                crc.finalize()
            };
            let difference = crc(id.to_be_bytes()) ^ crc([0, 0]);
            let found = super::icrc::preceding_difference(difference, behind);
            assert_eq!(found, Some(id.to_be_bytes()), "{id:#x}, {behind} bytes behind");
            assert_eq!(super::icrc::preceding_difference(difference ^ 0x10, behind), None);
        }
    }
}

#[test]
fn an_identification_is_found_whichever_was_expected() {
    for (flow, is_v4) in
        [(flow("10.0.0.1", "10.0.0.2", 49152), true), (flow("fd00::1", "fd00::2", 49152), false)]
    {
        for id in [0_u16, 1, 63, 0x1234] {
            let mut datagram = UC_SEND;
            let mut covered = IcrcInput::new(&flow, datagram.len());
            covered.seal(id, &mut datagram);
            let told = if is_v4 { id } else { 0 };
            assert_eq!(identification(&flow, &datagram), Some(told.to_be_bytes()), "{id}");
            let mut turned = datagram;
            turned[20] ^= 4;
            for expected in [0, id, id + 1, 0xFFFF] {
                assert!(covered.is_sound(expected, &datagram), "{id}, expected {expected}");
                assert!(!covered.is_sound(expected, &turned), "{id}, expected {expected}");
            }
            let mut longer = IcrcInput::new(&flow, datagram.len() + 4);
            longer.seal(id, &mut turned);
            assert!(!longer.is_sound(id, &turned) && turned[20] == datagram[20] ^ 4, "of another length");
        }
    }
}

fn message(is_write: bool) -> impl Strategy<Value = Operation> {
    let segment =
        prop_oneof![Just(Segment::First), Just(Segment::Middle), Just(Segment::Last), Just(Segment::Only)];
    (segment, any::<Option<u32>>(), reth()).prop_map(move |(segment, imm_be, reth)| {
        let imm_be = imm_be.filter(|_| segment.is_last());
        match is_write {
            true => Operation::Write(segment, segment.is_first().then_some(reth), imm_be),
            false => Operation::Send(segment, imm_be),
        }
    })
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(addr, rkey, len_bytes)| Reth { addr, rkey, len_bytes })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    let syndrome = prop_oneof![
        Just(Syndrome::Ack),
        (0..32_u8).prop_map(|timer| Syndrome::Rnr(RnrTimer(timer))),
        Just(Syndrome::Nak(Nak::PsnSequence)),
        Just(Syndrome::Nak(Nak::InvalidRequest)),
        Just(Syndrome::Nak(Nak::RemoteAccess)),
        Just(Syndrome::Nak(Nak::RemoteOperation)),
    ];
    (syndrome, 0..1_u32 << 24).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

fn operation() -> impl Strategy<Value = (QpType, Operation)> {
    let rc = |operation| (QpType::Rc, operation);
    let atomic = any::<(u64, u32, bool, u64, u64)>().prop_map(|(addr, rkey, swaps, a, b)| {
        let op =
            if swaps { AtomicOp::CompareSwap { compare: a, swap: b } } else { AtomicOp::FetchAdd { add: a } };
        Operation::AtomicRequest(AtomicEth { addr, rkey, op })
    });
    prop_oneof![
        (prop_oneof![Just(QpType::Rc), Just(QpType::Uc)], prop_oneof![message(false), message(true)]),
        reth().prop_map(move |reth| rc(Operation::ReadRequest(reth))),
        atomic.prop_map(rc),
        aeth().prop_map(move |aeth| rc(Operation::Acknowledge(aeth))),
        aeth().prop_map(move |aeth| rc(Operation::ReadResponse(Segment::Only, Some(aeth)))),
        Just(rc(Operation::ReadResponse(Segment::Middle, None))),
        Just(rc(Operation::CongestionNotification)),
        prop_oneof![Just(0x16), Just(0x17), Just(0x1c), Just(0x1d)]
            .prop_map(move |opcode| rc(Operation::NotOffered(opcode))),
        (aeth(), any::<u64>()).prop_map(move |(aeth, old)| rc(Operation::AtomicAcknowledge(aeth, old))),
        (any::<u32>(), 0..1_u32 << 24, any::<Option<u32>>()).prop_map(|(qkey, src_qpn, imm_be)| (
            QpType::Ud,
            Operation::Datagram(Deth { qkey, src_qpn }, imm_be)
        )),
    ]
}

proptest! {
    #[test]
    fn decodes_what_it_encodes(
        (transport, operation) in operation(),
        (solicited, ack_req) in any::<(bool, bool)>(),
        dest_qpn in 0..1_u32 << 24,
        psn in 0..1_u32 << 24,
        payload in proptest::collection::vec(any::<u8>(), 0..70),
    ) {
        let packet = Packet { transport, operation, solicited, ack_req, dest_qpn, psn: Psn::new(psn) };
        let mut headers = [0; HEADERS_BYTES_MAX];
        let len_bytes = encode(&packet, payload.len(), &mut headers);
        let mut datagram = headers[..len_bytes].to_vec();
        datagram.extend(&payload);
        datagram.extend(&[0; 8][..pad_bytes(payload.len()) + ICRC_BYTES]);
        prop_assert_eq!(dest_qpn_of(&datagram), Some(dest_qpn));
        prop_assert_eq!(datagram.len() % 4, 0);
        prop_assert_eq!(decode(&datagram), Ok((packet, &payload[..])));
        for cut in 0..len_bytes + ICRC_BYTES {
            prop_assert_eq!(decode(&datagram[..cut]), Err(Malformed::Short));
        }
    }
}
