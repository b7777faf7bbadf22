//! Datagrams by RoCEv2. Each test runs in a network namespace of its own, where the port is free.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::apart::{counted_at_port, is_apart, is_apart_with, is_port_open};
use crate::support::datagrams::{GRH, Ud, arrives, slot};
use crate::support::*;
use farcall_verbs::{
    AddressHandle, AhAttr, Gid, Mtu, Notify, QpState, QpType, ReceivedRoute, SendWr, UdTarget, WcFlags,
    WcStatus,
};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, icrc};
use farcall_wire::{Deth, Operation, Packet, Psn};

fn gid(address: &str) -> Gid {
    match address.parse().unwrap() {
        IpAddr::V4(v4) => Gid::from_ipv4(v4),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// Returns an address handle of an end's domain for an address.
fn handle_to(end: &Ud, dgid: Gid, sgid_index: u8) -> Box<dyn AddressHandle> {
    let attr = AhAttr { dgid, sgid_index, port_num: 1, ..AhAttr::default() };
    end.end.pd.create_ah(&attr).unwrap()
}

#[test]
fn reports_the_source_of_a_remote_datagram_by_ipv4_and_ipv6() {
    if !is_apart("reports_the_source_of_a_remote_datagram_by_ipv4_and_ipv6", "roce") {
        return;
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let table = a.end.context.query_gid_table(1).unwrap();
    for (family, address) in [gid("127.0.0.1"), gid("::1")].into_iter().enumerate() {
        let index = table.iter().find(|entry| entry.gid == address).unwrap().index;
        a.ah = handle_to(&a, address, index as u8);
        for (i, len) in [0, 1, 2, 3, 1000, 4095, 4096].into_iter().enumerate() {
            let i = (family * 10 + i) as u64;
            a.end.put(0, &bytes(len, i));
            b.end.put(slot(i), &vec![0xEE; GRH + len + 64]);
            b.recv(i, len);
            let (sges, to) = ([a.end.sge(0, len)], a.to(b.qpn(), QKEY));
            a.end.send(&[SendWr::send_to(1, &sges, to).with_imm(i as u32)]);
            let (wc, got) = b.take();
            assert_eq!((wc.wr_id, wc.byte_len as usize, wc.src_qp), (i, GRH + len, a.qpn()));
            assert_eq!((wc.wc_flags, wc.imm()), (WcFlags::GRH | WcFlags::WITH_IMM, Some(i as u32)));
            assert!(got == bytes(len, i), "{len} bytes differ");
            assert_eq!(b.end.get(slot(i) + GRH + len, 64), vec![0xEE; 64]);
            let header: [u8; 40] = b.end.get(slot(i), GRH).try_into().unwrap();
            let route = ReceivedRoute::of(&header);
            assert_eq!((route.source, route.destination), (address, address));
            // An address handle created from it leads back.
            let back = b.end.pd.create_ah(&AhAttr::from_received(&wc, &header, 1).unwrap()).unwrap();
            a.recv(i, 2);
            let (sges, to) = ([b.end.sge(slot(i), 2)], (back.as_raw(), wc.src_qp));
            let to = UdTarget { ah: to.0, remote_qpn: to.1, remote_qkey: QKEY };
            b.end.send(&[SendWr::send_to(2, &sges, to)]);
            assert_eq!(a.take().0.src_qp, b.qpn());
        }
    }
}

#[test]
fn wakes_a_sleeper_for_a_remote_datagram() {
    if !is_apart("wakes_a_sleeper_for_a_remote_datagram", "roce") {
        return;
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    for i in 0..20 {
        b.recv(i, 8);
        let to = b.qpn();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(i % 4));
            a.send(to, QKEY, &i.to_le_bytes());
            a
        });
        assert_eq!(b.end.sleep(Notify::Any).wr_id, i);
        assert_eq!(b.end.get(slot(i) + GRH, 8), i.to_le_bytes());
        a = sender.join().unwrap();
    }
}

#[test]
fn what_is_not_wanted_of_other_hosts_is_dropped_and_counted() {
    if !is_apart("what_is_not_wanted_of_other_hosts_is_dropped_and_counted", "roce") {
        return;
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let (to, unknown) = (b.qpn(), b.qpn() ^ 0x0040_0000);
    let until = |b: &mut Ud, name: &str, count: u64| {
        let start = std::time::Instant::now();
        while counted_at_port(name) < count {
            assert!(start.elapsed() < LOST, "{name}");
            assert_eq!(b.end.poll(), None);
        }
        assert_eq!(counted_at_port(name), count);
    };
    a.send(to, QKEY ^ 1, &[1; 8]);
    until(&mut b, "dropped_unwanted", 1);
    a.send(unknown, QKEY, &[1; 8]);
    until(&mut b, "dropped_unknown", 1);
    // Without a receive, and with one that is too short.
    a.send(to, QKEY, &[1; 8]);
    b.until_counted("receive_dropped_no_receive", |b| assert_eq!(b.end.poll(), None));
    b.recv(77, 7);
    a.send(to, QKEY, &[1; 8]);
    b.until_counted("receive_dropped_too_long", |b| assert_eq!(b.end.poll(), None));
    a.send(to, QKEY, b"1234567");
    assert_eq!(b.take().1, b"1234567");
    // More than are stored for a queue pair that is not polled.
    let send_and_wait = |a: &mut Ud, message: &[u8]| {
        let arrived = || counted_at_port("packets_received") + counted_at_port("dropped_unwanted");
        let (start, before) = (std::time::Instant::now(), arrived());
        a.send(to, QKEY, message);
        while arrived() == before {
            assert!(start.elapsed() < LOST, "the service thread receives packet {}", before + 1);
            std::thread::yield_now();
        }
    };
    while counted_at_port("dropped_unwanted") < 2 {
        send_and_wait(&mut a, &[2; 8]);
    }
    while b.end.poll().is_some() {}
    // After the error state everything is as before it, and none of the waiting datagrams is delivered.
    send_and_wait(&mut a, b"waits");
    b.end.qp.modify(&farcall_verbs::QpAttr::to(QpState::Reset)).unwrap();
    b.end.connect(0);
    arrives(&mut a, &mut b, b"the next");
}

#[test]
fn a_pair_sends_to_this_host_and_to_others() {
    if !is_apart("a_pair_sends_to_this_host_and_to_others", "auto") {
        return;
    }
    for change in [
        "link add here type veth peer name there",
        "address add 192.0.2.1/24 dev here",
        "link set here up",
        "link set there up",
        "neighbor add 192.0.2.9 lladdr 02:00:00:00:00:09 dev here",
    ] {
        assert!(Command::new("ip").args(change.split(' ')).status().unwrap().success(), "ip {change}");
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    assert!(!is_port_open(), "datagrams of this host need no port");
    drop(handle_to(&a, gid("127.0.0.9"), 0));
    assert!(!is_port_open(), "nor do those to any of its addresses");
    let abroad = handle_to(&a, gid("192.0.2.9"), 0);
    assert!(is_port_open());
    let handles = [a.ah.as_raw(), abroad.as_raw()];
    a.end.put(0, &bytes(64, 1));
    for round in 0..50_u64 {
        (0..2).for_each(|i| b.recv(i, 16));
        let elements: Vec<_> = (0..4).map(|i| [a.end.sge(i * 16, 16)]).collect();
        let is_abroad = |i: u64| (i + round) % 2 == 1;
        let request = |i: u64| {
            let to =
                UdTarget { ah: handles[usize::from(is_abroad(i))], remote_qpn: b.qpn(), remote_qkey: QKEY };
            SendWr::send_to(i, &elements[i as usize], to).with_imm(i as u32).with_flags(SIGNALED)
        };
        a.end.send(&[request(0), request(1), request(2), request(3)]);
        for i in 0..4 {
            let wc = a.end.wait();
            assert_eq!((wc.wr_id, wc.status), (i, WcStatus::SUCCESS), "completions keep their order");
        }
        let mut found: Vec<u64> = Vec::new();
        for _ in 0..2 {
            let (wc, got) = b.take();
            let i = wc.imm().unwrap();
            assert!(got == bytes(64, 1)[i as usize * 16..][..16], "datagram {i} differs");
            found.push(i.into());
        }
        found.sort_unstable();
        assert_eq!(found, (0..4).filter(|i| !is_abroad(*i)).collect::<Vec<_>>());
        assert_eq!(counted_at_port("packets_sent"), 2 * (round + 1));
    }
}

#[test]
fn receives_from_other_hosts_after_the_program_reads_its_gid() {
    if !is_apart("receives_from_other_hosts_after_the_program_reads_its_gid", "auto") {
        return;
    }
    let ip = std::process::Command::new("ip").args(["address", "add", "10.9.9.9/24", "dev", "lo"]).status();
    assert!(ip.unwrap().success());
    let first = Ud::new();
    let table = first.end.context.query_gid_table(1).unwrap();
    let entry = table.iter().find(|entry| entry.gid == gid("10.9.9.9")).expect("the address of a device");
    assert!(!is_port_open(), "reading the table tells nobody");
    assert_eq!(first.end.context.query_gid(1, entry.index).unwrap(), entry.gid);
    let second = Ud::new();
    assert!(is_port_open());
    assert_eq!(second.end.qp.state(), QpState::Rts);
}

#[test]
fn datagrams_of_a_host_that_is_not_listed_are_dropped() {
    if !is_apart("datagrams_of_a_host_that_is_not_listed_are_dropped", "roce") {
        return;
    }
    // SAFETY: the test has its process for itself, and no other thread reads the environment in it.
    unsafe { std::env::set_var("FARCALL_NET_PEERS", "127.0.0.1") };
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let local = a.end.context.query_gid_table(1).unwrap();
    let attr = AhAttr { dgid: gid("::1"), port_num: 1, ..AhAttr::default() };
    assert!(local.iter().any(|entry| entry.gid == attr.dgid));
    assert!(a.end.pd.create_ah(&attr).is_err(), "it is no peer");
    // Datagrams that arrive from there nevertheless are dropped.
    let stranger = std::net::UdpSocket::bind(("127.0.0.2", 0)).unwrap();
    let deth = Deth { qkey: QKEY, src_qpn: 7 };
    let packet = Packet {
        transport: QpType::Ud,
        operation: Operation::Datagram(deth, None),
        solicited: false,
        ack_req: false,
        dest_qpn: b.qpn(),
        psn: Psn::default(),
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len_bytes = encode(&packet, 0, &mut headers);
    let mut datagram = headers[..len_bytes].to_vec();
    datagram.resize(len_bytes + ICRC_BYTES, 0);
    let src_port = stranger.local_addr().unwrap().port();
    let (src, dst) = ([127, 0, 0, 2].into(), [127, 0, 0, 1].into());
    icrc::seal(&icrc::Flow { src, dst, src_port, dst_port: UDP_PORT }, &mut datagram);
    stranger.send_to(&datagram, ("127.0.0.1", UDP_PORT)).unwrap();
    let start = std::time::Instant::now();
    while counted_at_port("dropped_foreign") == 0 {
        assert!(start.elapsed() < LOST, "it is not counted");
        assert_eq!(b.end.poll(), None);
    }
    arrives(&mut a, &mut b, b"of a host that is listed");
}

#[test]
fn limits_the_port_mtu_to_packets_that_are_not_fragmented() {
    const TEST: &str = "limits_the_port_mtu_to_packets_that_are_not_fragmented";
    if !is_apart(TEST, "roce") {
        return;
    }
    let shorter = Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).status().unwrap();
    assert!(shorter.success());
    let (mut a, mut b) = (Ud::new(), Ud::new());
    let port = a.end.context.query_port(1).unwrap();
    assert_eq!((port.active_mtu, port.max_mtu), (Mtu::Mtu1024, Mtu::Mtu4096));
    arrives(&mut a, &mut b, &[7; 1024]);
    let (sges, to) = ([a.end.sge(0, 1025)], a.to(b.qpn(), QKEY));
    a.end.send(&[SendWr::send_to(1, &sges, to)]);
    assert_eq!(a.end.wait().status, WcStatus::LOC_LEN_ERR);
}

#[test]
fn detects_an_injected_corruption_after_fragmentation() {
    const TEST: &str = "detects_an_injected_corruption_after_fragmentation";
    let faults = [("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", "seed=1,corrupt=1")];
    if !is_apart_with(TEST, &faults) {
        return;
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    // The port keeps the MTU that it had when the device was opened.
    let shorter = Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).status().unwrap();
    assert!(shorter.success());
    let table = a.end.context.query_gid_table(1).unwrap();
    let address = gid("127.0.0.1");
    let index = table.iter().find(|entry| entry.gid == address).unwrap().index;
    a.ah = handle_to(&a, address, index as u8);
    b.recv(1, 4096);
    a.send(b.qpn(), QKEY, &[7; 4096]);
    let start = Instant::now();
    while counted_at_port("dropped_crc") == 0 {
        assert!(start.elapsed() < LOST, "the packet was not found to be spoilt");
        std::thread::yield_now();
    }
    assert_eq!(b.end.poll(), None);
}
