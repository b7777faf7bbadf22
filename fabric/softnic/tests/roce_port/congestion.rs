//! Congestion between hosts: marked packets, notifications, and unauthenticated senders that forge both. Each test runs
//! in a network namespace of its own, where the port is free.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::support::apart::{ONE_SOURCE_PORT, counted_at_port, is_apart, is_apart_with, shared_socket};
use crate::support::datagrams::{Ud, arrives};
use crate::support::{ALL, End, LOST};
use farcall_verbs::{AhAttr, Gid, Mtu, QpAttr, QpCap, QpType, SendFlags, SendWr, Wc, WcStatus};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, icrc};
use farcall_wire::{Operation, Packet, Psn, Segment};

const LEN_BYTES: usize = 1 << 20;
/// Minimum interval between two notifications of a queue pair to its peer.
const NOTIFICATION_US: u64 = 50;

/// Returns two connected ends whose packets use an address of this host.
fn connected(address: &str) -> [End; 2] {
    let dgid = Gid(match address.parse().unwrap() {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    });
    let mut ends = [End::new(LEN_BYTES, ALL, QpCap::default()), End::new(LEN_BYTES, ALL, QpCap::default())];
    ends.iter_mut().for_each(End::init);
    let [a, b] = ends.each_ref().map(|end| end.qp.qp_num());
    for (end, dest) in ends.iter_mut().zip([b, a]) {
        let path = AhAttr { dgid, port_num: 1, ..AhAttr::default() };
        end.qp.modify(&QpAttr::rtr(dest, 0, path, Mtu::Mtu4096)).unwrap();
        end.rts();
    }
    ends
}

/// Transfers the complete buffer by a WRITE and by a READ; both arrive unchanged.
fn exchange([a, b]: &mut [End; 2], round: u32) {
    let bytes: Vec<u8> =
        (0..LEN_BYTES as u32).map(|at| ((at + round).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    a.put(0, &bytes);
    for is_write in [true, false] {
        b.put(0, &vec![0; LEN_BYTES]);
        let (from, to) = if is_write { (&mut *a, &*b) } else { (&mut *b, &*a) };
        let sges = [from.sge(0, LEN_BYTES)];
        let (addr, rkey) = (to.mr.addr() as u64, to.mr.rkey());
        let wr =
            if is_write { SendWr::write(1, &sges, addr, rkey) } else { SendWr::read(1, &sges, addr, rkey) };
        from.send(&[wr.with_flags(SendFlags::SIGNALED)]);
        assert_eq!(from.wait().status, WcStatus::SUCCESS, "write: {is_write}");
        assert!(b.get(0, LEN_BYTES) == bytes, "write: {is_write}");
    }
}

/// The kernel marks every packet on its path.
fn suffer_marks(test: &str, address: &str) {
    if !is_apart_with(test, &[("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", "seed=5,mark=1")]) {
        return;
    }
    let began = Instant::now();
    let mut ends = connected(address);
    exchange(&mut ends, 0);
    let [marked, sent, received] = ["packets_marked", "cnps_sent", "cnps_received"].map(counted_at_port);
    assert!(marked >= 2 * LEN_BYTES as u64 / 4096, "{marked} marked");
    assert!(received > 0 && received <= sent, "{received} notifications of {sent}");
    let most = 2 * (began.elapsed().as_micros() as u64 / NOTIFICATION_US + 1);
    assert!(sent <= most, "{sent} notifications by two pairs, {most} at most");
}

#[test]
fn notifies_the_sender_of_marked_ipv4_packets() {
    suffer_marks("notifies_the_sender_of_marked_ipv4_packets", "127.0.0.1");
}

#[test]
fn notifies_the_sender_of_marked_ipv6_packets() {
    suffer_marks("notifies_the_sender_of_marked_ipv6_packets", "::1");
}

/// Datagrams have no rate control, so the network must not mark them.
#[test]
fn datagrams_are_never_marked() {
    if !is_apart_with(
        "datagrams_are_never_marked",
        &[("FARCALL_TRANSPORT", "roce"), ("FARCALL_WIRE_FAULTS", "seed=5,mark=1")],
    ) {
        return;
    }
    let (mut a, mut b) = (Ud::new(), Ud::new());
    arrives(&mut a, &mut b, b"a datagram");
    assert_eq!((counted_at_port("packets_received"), counted_at_port("packets_marked")), (1, 0));
}

/// Returns a packet for an end, with the CRC of a packet from `from`.
fn packet_for(end: &End, operation: Operation, from: &UdpSocket) -> Vec<u8> {
    let packet = Packet {
        transport: QpType::Rc,
        operation,
        solicited: false,
        ack_req: true,
        dest_qpn: end.qp.qp_num(),
        // Older than any sequence number that the end expects.
        psn: Psn::new(0xFF_0000),
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len_bytes = encode(&packet, 0, &mut headers);
    let mut datagram = headers[..len_bytes].to_vec();
    datagram.resize(len_bytes + ICRC_BYTES, 0);
    seal(&mut datagram, from);
    datagram
}

fn seal(datagram: &mut [u8], from: &UdpSocket) {
    let name = from.local_addr().unwrap();
    let is_everywhere = name.ip().is_unspecified();
    let flow = icrc::Flow {
        src: if is_everywhere { Ipv4Addr::LOCALHOST.into() } else { name.ip().to_canonical() },
        dst: Ipv4Addr::LOCALHOST.into(),
        src_port: name.port(),
        dst_port: UDP_PORT,
    };
    icrc::seal(&flow, datagram);
}

/// Creates a socket whose packets carry the CE mark.
fn marking_socket(address: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let congested: libc::c_int = 3;
    // SAFETY: the option's value is an integer, and a local variable that outlives the call.
    let set = unsafe {
        let value = (&raw const congested).cast();
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_TOS,
            value,
            size_of_val(&congested) as u32,
        )
    };
    assert_eq!(set, 0);
    socket
}

/// Sends a datagram to the port and polls, like a program, until it is counted.
fn strike(end: &mut End, from: &UdpSocket, datagram: &[u8], counter: &str) {
    let before = counted_at_port(counter);
    from.send_to(datagram, SocketAddrV4::new(Ipv4Addr::LOCALHOST, UDP_PORT)).unwrap();
    let began = Instant::now();
    while counted_at_port(counter) == before {
        assert_eq!(end.cq.poll(&mut [Wc::default()]).unwrap(), 0);
        assert!(began.elapsed() < LOST, "{counter} does not count");
    }
}

#[test]
fn ignores_congestion_packets_of_other_senders() {
    if !is_apart("ignores_congestion_packets_of_other_senders", "roce") {
        return;
    }
    let mut ends = connected("127.0.0.1");
    let stranger = marking_socket(Ipv4Addr::new(127, 0, 0, 2));
    let [_, b] = &mut ends;
    for operation in [Operation::CongestionNotification, Operation::Send(Segment::Only, None)] {
        let foreign = packet_for(b, operation, &stranger);
        strike(b, &stranger, &foreign, "dropped_foreign");
        let mut unknown = foreign.clone();
        unknown[5..8].copy_from_slice(&[0, 0, 2]);
        seal(&mut unknown, &stranger);
        strike(b, &stranger, &unknown, "dropped_unknown");
        strike(b, &stranger, &foreign[..foreign.len() - 1], "dropped_crc");
    }
    assert_eq!(counted_at_port("packets_marked"), 6);
    exchange(&mut ends, 0);
    // Also from another port of the peer's address.
    let stranger = marking_socket(Ipv4Addr::LOCALHOST);
    for operation in [Operation::CongestionNotification, Operation::Send(Segment::Only, None)] {
        let foreign = packet_for(&ends[1], operation, &stranger);
        strike(&mut ends[1], &stranger, &foreign, "dropped_foreign");
    }
    assert_eq!((counted_at_port("cnps_sent"), counted_at_port("cnps_received")), (0, 0));
    exchange(&mut ends, 1);
}

/// A sender with the address and the port of the peer can slow the queue pair down to its lowest rate, at which 1 MiB
/// takes a twelfth of a second.
#[test]
fn a_flood_of_notifications_does_not_stop_a_pair() {
    if !is_apart_with("a_flood_of_notifications_does_not_stop_a_pair", &ONE_SOURCE_PORT) {
        return;
    }
    let mut ends = connected("127.0.0.1");
    exchange(&mut ends, 0);
    let forger = shared_socket(Ipv6Addr::UNSPECIFIED.into(), UDP_PORT);
    for round in 1..4 {
        for end in &mut ends {
            let notification = packet_for(end, Operation::CongestionNotification, &forger);
            (0..20).for_each(|_| strike(end, &forger, &notification, "cnps_received"));
        }
        exchange(&mut ends, round);
    }
    assert_eq!((counted_at_port("cnps_received"), counted_at_port("cnps_sent")), (120, 0));
}
