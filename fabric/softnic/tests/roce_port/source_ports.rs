//! Source ports of connected queue pairs, as their peers see them. Each test runs in a namespace of its own.

use std::collections::HashSet;
use std::fs::read_to_string;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use super::strangers::write_packet;
use crate::support::apart::{ONE_SOURCE_PORT, counted_at_pair, counted_at_port, is_apart, shared_socket};
use crate::support::process::{Other, connect, learn, role, start, start_with, tell};
use crate::support::*;
use farcall_verbs::{Gid, Mtu, QpAttr, QpCap, QpType, SendWr, WcOpcode, WcStatus};
use farcall_wire::Operation;
use farcall_wire::codec::{UDP_PORT, decode, icrc};

/// Address of a peer that the test plays.
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Maximum number of source ports of a process.
const PORTS_MAX: usize = 64;

/// Connects an end to queue pair 7 of the peer.
fn connect_to_peer(end: &mut End) {
    end.init();
    let path = farcall_verbs::AhAttr { dgid: Gid::from_ipv4(PEER), ..end.path() };
    let (rtr, rts) = match end.qp.qp_type() {
        QpType::Rc => (QpAttr::rtr(7, 0, path, Mtu::Mtu1024), patient()),
        _ => (QpAttr::rtr_unreliable(7, 0, path, Mtu::Mtu1024), QpAttr::rts_unreliable(0)),
    };
    end.qp.modify(&rtr).unwrap();
    end.qp.modify(&rts).unwrap();
}

/// Returns the peer's socket at port 4791. The port must be open, because it is not opened where others have it.
fn peer_socket() -> UdpSocket {
    let socket = shared_socket(PEER.into(), UDP_PORT);
    socket.set_read_timeout(Some(LOST)).unwrap();
    socket
}

/// Receives a packet at the peer, with the right CRC for its source port, which is returned.
fn received_by(peer: &UdpSocket) -> (u16, Operation) {
    let mut datagram = [0; 4096];
    let (len_bytes, from) = peer.recv_from(&mut datagram).unwrap();
    let flow = icrc::Flow {
        src: from.ip().to_canonical(),
        dst: PEER.into(),
        src_port: from.port(),
        dst_port: UDP_PORT,
    };
    assert!(icrc::is_sound(&flow, &datagram[..len_bytes]), "the CRC is not that of port {}", from.port());
    (from.port(), decode(&datagram[..len_bytes]).unwrap().0.operation)
}

fn source_port(end: &End) -> u16 {
    counted_at_pair(end.qp.qp_num(), "source_port") as u16
}

/// Returns the lines of the kernel's table for the sockets of Farcall's source ports.
fn sender_lines() -> Vec<String> {
    let is_sender = |line: &&str| {
        let port =
            line.split_whitespace().nth(1).and_then(|local| local.split_once(':')).unwrap_or_default().1;
        u16::from_str_radix(port, 16).is_ok_and(|port| (0x8000..0xC000).contains(&port))
    };
    let table = read_to_string("/proc/self/net/udp6").unwrap();
    table.lines().filter(is_sender).map(str::to_owned).collect()
}

#[test]
fn each_pair_sends_from_a_port_of_its_own() {
    if !is_apart("each_pair_sends_from_a_port_of_its_own", "roce") {
        return;
    }
    let mut ends: Vec<_> = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Uc]
        .map(|qp_type| End::of(qp_type, QpCap::default()))
        .into();
    ends.iter_mut().for_each(connect_to_peer);
    let peer = peer_socket();
    let mut seen = HashSet::new();
    for end in &mut ends {
        let sges = [end.sge(0, 4)];
        end.send(&[SendWr::send(1, &sges)]);
        let (port, _) = received_by(&peer);
        assert_eq!(port, source_port(end));
        assert!((0x8000..0xC000).contains(&port) && seen.insert(port), "{port}");
    }
    assert_eq!(counted_at_port("pairs_on_shared_ports"), 0);
}

/// A pair that is reset and connected again keeps its port: an unreliable peer that was not reset accepts no other.
#[test]
fn a_pair_that_is_connected_again_keeps_its_port() {
    if !is_apart("a_pair_that_is_connected_again_keeps_its_port", "roce") {
        return;
    }
    let mut ends = [(); 2].map(|()| End::of(QpType::Uc, QpCap::default()));
    ends.iter_mut().for_each(connect_to_peer);
    let before = source_port(&ends[0]);
    ends[0].qp.modify(&QpAttr::to(farcall_verbs::QpState::Reset)).unwrap();
    assert_eq!(sender_lines().len(), 1, "the port of a pair that is reset is free");
    connect_to_peer(&mut ends[0]);
    assert_eq!(source_port(&ends[0]), before);
}

#[test]
fn has_a_bounded_number_of_source_ports_and_closes_them() {
    if !is_apart("has_a_bounded_number_of_source_ports_and_closes_them", "roce") {
        return;
    }
    let mut ends: Vec<_> = (0..PORTS_MAX + 4).map(|_| End::of(QpType::Rc, QpCap::default())).collect();
    ends.iter_mut().for_each(connect_to_peer);
    let ports: Vec<_> = ends.iter().map(source_port).collect();
    assert_eq!(ports[..PORTS_MAX].iter().collect::<HashSet<_>>().len(), PORTS_MAX);
    assert!(ports[PORTS_MAX..].iter().all(|port| ports[..PORTS_MAX].contains(port)));
    assert_eq!(counted_at_port("pairs_on_shared_ports"), 4);
    assert_eq!(sender_lines().len(), PORTS_MAX);
    // A port that others use stays open.
    let with_others = ports[..PORTS_MAX].iter().position(|port| *port == ports[PORTS_MAX]).unwrap();
    drop(ends.remove(with_others));
    assert_eq!(sender_lines().len(), PORTS_MAX);
    drop(ends);
    assert_eq!(sender_lines(), [""; 0]);
}

#[test]
fn sends_from_the_shared_port_without_descriptors() {
    if !is_apart("sends_from_the_shared_port_without_descriptors", "roce") {
        return;
    }
    let mut ends = [(); 2].map(|()| End::default());
    // Other steps of the first connection open descriptors, too.
    connect_to_peer(&mut ends[0]);
    ends[1].init();
    let path = farcall_verbs::AhAttr { dgid: Gid::from_ipv4(PEER), ..ends[1].path() };
    let limit = |soft| {
        let limit = libc::rlimit { rlim_cur: soft, rlim_max: 4_096 };
        // SAFETY: `limit` is a local variable that outlives the call, which only reads it.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    limit(0);
    let connected = ends[1].qp.modify(&QpAttr::rtr(7, 0, path, Mtu::Mtu1024));
    limit(4_096);
    connected.unwrap();
    assert_eq!(source_port(&ends[1]), source_port(&ends[0]), "it sends from the port of another");
    assert_eq!(counted_at_port("pairs_on_shared_ports"), 1);
}

/// Whatever is sent to a source port is dropped by the kernel, and takes no memory.
#[test]
fn receives_nothing_at_a_source_port() {
    if !is_apart("receives_nothing_at_a_source_port", "roce") {
        return;
    }
    let mut end = End::default();
    connect_to_peer(&mut end);
    let stranger = UdpSocket::bind((PEER, 0)).unwrap();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, source_port(&end)));
    for _ in 0..100 {
        // Connected, so that an ICMP error would be reported.
        stranger.connect(to).unwrap();
        assert_eq!(stranger.send(&[7; 1000]).unwrap(), 1000);
    }
    let lines = sender_lines();
    let queued = lines[0].split_whitespace().nth(4).unwrap();
    assert_eq!((lines.len(), queued), (1, "00000000:00000000"));
    // No other socket can send from the port, not even one of the same user that would share it.
    let in_use = std::panic::catch_unwind(|| shared_socket(PEER.into(), to.port()));
    assert!(in_use.is_err() && UdpSocket::bind((PEER, to.port())).is_err());
}

/// RNICs and the kernel's rxe have a fixed source port for a pair.
#[test]
fn replies_to_port_4791_of_a_card() {
    const CARD_PORT: u16 = 0xC123;
    if !is_apart("replies_to_port_4791_of_a_card", "roce") {
        return;
    }
    let mut end = End::default();
    connect_to_peer(&mut end);
    let (peer, card) = (peer_socket(), UdpSocket::bind((PEER, CARD_PORT)).unwrap());
    for psn in 0..3 {
        let write = write_packet(&end, psn, end.mr.rkey(), PEER, CARD_PORT);
        card.send_to(&write, (Ipv4Addr::LOCALHOST, UDP_PORT)).unwrap();
        let began = Instant::now();
        peer.set_nonblocking(true).unwrap();
        while peer.peek(&mut [0]).is_err() {
            assert!(end.poll().is_none() && began.elapsed() < LOST, "no acknowledgement");
        }
        let (port, operation) = received_by(&peer);
        assert_eq!(port, source_port(&end));
        assert!(matches!(operation, Operation::Acknowledge(_)), "{operation:?}");
        assert_eq!(end.get(0, 4), b"evil");
    }
}

#[test]
fn child_entry() {
    let Some((_, _, mut line)) = role() else { return };
    let (mut end, _) = connect(&mut line, QpCap::default()).unwrap();
    end.recv(0, &[end.sge(0, 64)]);
    line.say([u64::from(source_port(&end)), 0, 0, 0]);
    while end.wait().opcode == WcOpcode::RECV {
        let back = [end.sge(0, 64)];
        end.recv(0, &[end.sge(64, 64)]);
        end.send(&[SendWr::send(1, &back)]);
    }
    line.hear();
}

/// Earlier versions send from 4791, as this one does where `FARCALL_SOURCE_PORTS=shared` is set.
#[test]
fn works_with_a_peer_that_sends_from_4791() {
    if !is_apart("works_with_a_peer_that_sends_from_4791", "roce") {
        return;
    }
    let [_, (name, value)] = ONE_SOURCE_PORT;
    let others: [Other; 2] = [start_with("echo", &[], &[(name, value.as_ref())]), start("echo", &[])];
    for (mut other, is_shared) in others.into_iter().zip([true, false]) {
        let to = learn(&mut other.line).unwrap();
        let mut end = End::default();
        tell(&mut other.line, &end);
        end.connect(to.qpn);
        let [port, ..] = other.line.hear().unwrap();
        assert_eq!(port == u64::from(UDP_PORT), is_shared, "{port}");
        let data = bytes(64, port);
        end.put(0, &data);
        end.recv(2, &[end.sge(64, 64)]);
        end.send(&[SendWr::send(1, &[end.sge(0, 64)]).with_flags(SIGNALED)]);
        assert_eq!([end.wait().status, end.wait().status], [WcStatus::SUCCESS; 2]);
        assert!(end.get(64, 64) == data, "{port}");
    }
}
