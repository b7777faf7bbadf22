//! The RoCEv2 port and untrusted packets from the network, which are dropped and counted. Each test runs in a network
//! namespace of its own, where the port is free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use crate::support::apart::{counted_at_port, is_apart, is_apart_as_root, is_port_open, shared_socket};
use crate::support::{End, LOST};
use farcall_softnic::Management;
use farcall_verbs::{AhAttr, Gid, Mtu, QpAttr, QpType, SendFlags, SendWr, WcStatus};
use farcall_wire::cm::{MESSAGE_BYTES, Mad, Message};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, icrc, pad_bytes};
use farcall_wire::{Deth, Operation, Packet, Psn, Reth, Segment};
use rustix::net::{self, AddressFamily, SocketType};

fn connected() -> (End, End) {
    let (mut a, mut b) = (End::default(), End::default());
    for end in [&mut a, &mut b] {
        end.init();
    }
    let (to_a, to_b) = (a.qp.qp_num(), b.qp.qp_num());
    a.rtr(to_b);
    b.rtr(to_a);
    a.rts();
    b.rts();
    (a, b)
}

/// Returns a WRITE of four bytes as the peer's next request, with the CRC of a packet from `claimed`.
pub fn write_packet(end: &End, psn: u32, rkey: u32, claimed: Ipv4Addr, src_port: u16) -> Vec<u8> {
    let reth = Reth { addr: end.mr.addr() as u64, rkey, len_bytes: 4 };
    let packet = Packet {
        transport: QpType::Rc,
        operation: Operation::Write(Segment::Only, Some(reth), None),
        solicited: false,
        ack_req: true,
        dest_qpn: end.qp.qp_num(),
        psn: Psn::new(psn),
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len_bytes = encode(&packet, 4, &mut headers);
    let mut datagram = headers[..len_bytes].to_vec();
    datagram.extend_from_slice(b"evil");
    datagram.resize(datagram.len() + pad_bytes(4) + ICRC_BYTES, 0);
    let (src, dst) = (claimed.into(), Ipv4Addr::LOCALHOST.into());
    icrc::seal(&icrc::Flow { src, dst, src_port, dst_port: UDP_PORT }, &mut datagram);
    datagram
}

/// Sends a datagram to the port and polls, like a program, until it is counted.
fn strike(end: &mut End, from: &UdpSocket, datagram: &[u8], counter: &str) {
    let before = counted_at_port(counter);
    from.send_to(datagram, (Ipv4Addr::LOCALHOST, UDP_PORT)).unwrap();
    let began = Instant::now();
    while counted_at_port(counter) == before {
        assert_eq!(end.cq.poll(&mut [farcall_verbs::Wc::default()]).unwrap(), 0);
        assert!(began.elapsed() < LOST, "{counter} does not count");
    }
    assert_eq!(counted_at_port(counter), before + 1);
}

#[test]
fn drops_and_counts_packets_of_unconnected_senders() {
    if !is_apart("drops_and_counts_packets_of_unconnected_senders", "roce") {
        return;
    }
    let (mut a, mut b) = connected();
    let stranger_address = Ipv4Addr::new(127, 0, 0, 2);
    let stranger = UdpSocket::bind((stranger_address, 0)).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let rkey = b.mr.rkey();
    strike(&mut b, &stranger, b"no packet at all", "dropped_crc");
    strike(&mut b, &stranger, b"", "dropped_crc");
    let forged = write_packet(&b, 0, rkey, Ipv4Addr::LOCALHOST, port);
    strike(&mut b, &stranger, &forged, "dropped_crc");
    let honest = write_packet(&b, 0, rkey, stranger_address, port);
    strike(&mut b, &stranger, &honest, "dropped_foreign");
    let mut unknown = write_packet(&b, 0, rkey, stranger_address, port);
    unknown[5..8].copy_from_slice(&[0, 0, 1]);
    let flow = icrc::Flow {
        src: stranger_address.into(),
        dst: Ipv4Addr::LOCALHOST.into(),
        src_port: port,
        dst_port: UDP_PORT,
    };
    icrc::seal(&flow, &mut unknown);
    strike(&mut b, &stranger, &unknown, "dropped_unknown");
    unknown[0] = 0x1F;
    icrc::seal(&flow, &mut unknown);
    strike(&mut b, &stranger, &unknown, "dropped_malformed");
    assert_eq!(b.get(0, 4), [0; 4], "nothing was placed");
    // The queue pair continues to work.
    a.put(0, b"good");
    let sges = [a.sge(0, 4)];
    let write = SendWr::write(1, &sges, b.mr.addr() as u64, rkey).with_flags(SendFlags::SIGNALED);
    a.send(&[write]);
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    assert_eq!(b.get(0, 4), b"good");
}

#[test]
fn no_port_is_open_before_a_pair_goes_to_another_host() {
    if !is_apart("no_port_is_open_before_a_pair_goes_to_another_host", "roce") {
        return;
    }
    let (mut a, b) = (End::default(), End::default());
    a.init();
    assert!(!is_port_open());
    a.rtr(b.qp.qp_num());
    assert!(is_port_open());
}

#[test]
fn a_host_that_is_not_listed_is_no_peer() {
    if !is_apart("a_host_that_is_not_listed_is_no_peer", "roce") {
        return;
    }
    let mut ends = [End::default(), End::default(), End::default()];
    ends.iter_mut().for_each(End::init);
    let rtr = |end: &mut End| {
        let attr = QpAttr::rtr(1, 0, end.path(), Mtu::Mtu1024);
        end.qp.modify(&attr).map_err(|error| error.to_string())
    };
    // SAFETY: the test has its process for itself, and no other thread reads the environment in it.
    let set = |name: &str, value: &str| unsafe { std::env::set_var(name, value) };
    set("FARCALL_NET_PEERS", "10.0.0.7");
    assert!(rtr(&mut ends[0]).unwrap_err().contains("FARCALL_NET_PEERS"));
    set("FARCALL_NET_PEERS", "10.0.0.7,127.0.0.1");
    assert_eq!(rtr(&mut ends[1]), Ok(()));
}

/// Returns a datagram for queue pair 1, with the CRC of a packet from the address and port of `stranger`.
fn management_packet(stranger: &UdpSocket, qkey: u32, payload: &[u8]) -> Vec<u8> {
    management_packet_to(Ipv4Addr::LOCALHOST.into(), stranger, qkey, payload)
}

fn management_packet_to(dst: IpAddr, stranger: &UdpSocket, qkey: u32, payload: &[u8]) -> Vec<u8> {
    let packet = Packet {
        transport: QpType::Ud,
        operation: Operation::Datagram(Deth { qkey, src_qpn: 1 }, None),
        solicited: false,
        ack_req: false,
        dest_qpn: 1,
        psn: Psn::new(0),
    };
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len_bytes = encode(&packet, payload.len(), &mut headers);
    let mut datagram = [&headers[..len_bytes], payload].concat();
    datagram.resize(datagram.len() + pad_bytes(payload.len()) + ICRC_BYTES, 0);
    let from = stranger.local_addr().unwrap();
    let src = from.ip();
    icrc::seal(&icrc::Flow { src, dst, src_port: from.port(), dst_port: UDP_PORT }, &mut datagram);
    datagram
}

/// Q_Key of queue pair 1.
const QKEY: u32 = 0x8001_0000;

/// Returns a connection management message.
fn message() -> [u8; MESSAGE_BYTES] {
    Mad { transaction_id: 1, local_comm_id: 2, remote_comm_id: 3, message: Message::Rtu }.encode()
}

/// Sends a datagram to the port and waits until the service thread has counted it.
fn strike_idle(from: &UdpSocket, to: IpAddr, datagram: &[u8], counter: &str) {
    let before = counted_at_port(counter);
    from.send_to(datagram, (to, UDP_PORT)).unwrap();
    let began = Instant::now();
    while counted_at_port(counter) == before {
        assert!(began.elapsed() < LOST, "{counter} does not count");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn drops_messages_from_own_addresses() {
    if !is_apart("drops_messages_from_own_addresses", "auto") {
        return;
    }
    let management = Management::open().unwrap();
    assert!(management.claim().unwrap());
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 5)] {
        let stranger = UdpSocket::bind((address, 0)).unwrap();
        let packet = management_packet(&stranger, QKEY, &message());
        strike_idle(&stranger, Ipv4Addr::LOCALHOST.into(), &packet, "dropped_local");
    }
    assert_eq!(management.take(), None);
    // A queue pair does not connect to such an address, either.
    let mut end = End::default();
    end.init();
    let dgid = Gid::from_ipv4(Ipv4Addr::new(127, 0, 0, 5));
    let error = end.qp.modify(&QpAttr::rtr(1, 0, AhAttr { dgid, ..end.path() }, Mtu::Mtu1024)).unwrap_err();
    assert!(error.to_string().contains("FARCALL_TRANSPORT"), "{error}");
}

/// Returns a socket that sends from an address which this host does not have: IPv6 permits that without a privilege.
fn socket_of_another_address(address: Ipv6Addr) -> UdpSocket {
    let socket = net::socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
    net::sockopt::set_ipv6_freebind(&socket, true).unwrap();
    net::bind(&socket, &SocketAddrV6::new(address, 0, 0, 0)).unwrap();
    socket.into()
}

#[test]
fn drops_forged_ipv6_sources_of_own_packets() {
    if !is_apart("drops_forged_ipv6_sources_of_own_packets", "auto") {
        return;
    }
    let management = Management::open().unwrap();
    assert!(management.claim().unwrap());
    let to = Ipv6Addr::LOCALHOST.into();
    for address in [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x99), Ipv6Addr::LOCALHOST] {
        let forger = socket_of_another_address(address);
        strike_idle(&forger, to, &management_packet_to(to, &forger, QKEY, &message()), "dropped_local");
    }
    assert_eq!(management.take(), None);
}

#[test]
fn drops_packets_of_another_users_process() {
    let Some(true) = is_apart_as_root("drops_packets_of_another_users_process", "roce") else { return };
    let (_a, mut b) = connected();
    let management = Management::open().unwrap();
    assert!(management.claim().unwrap());
    let stranger = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 5), 0)).unwrap();
    // As if a process of that user had created the socket.
    std::os::unix::fs::fchown(&stranger, Some(65_534), None).unwrap();
    strike(&mut b, &stranger, &management_packet(&stranger, QKEY, &message()), "dropped_local");
    assert_eq!(management.take(), None);
    let own = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 5), 0)).unwrap();
    strike(&mut b, &own, &management_packet(&own, QKEY, &message()), "packets_received");
    assert!(management.take().is_some());
    // Also to a queue pair whose peer has this address, with the sequence number that it expects.
    let (mut c, d) = (End::default(), End::default());
    let forged = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    std::os::unix::fs::fchown(&forged, Some(65_534), None).unwrap();
    c.init();
    c.rtr(d.qp.qp_num());
    let port = forged.local_addr().unwrap().port();
    let write = write_packet(&c, 0, c.mr.rkey(), Ipv4Addr::LOCALHOST, port);
    strike(&mut b, &forged, &write, "dropped_local");
    assert_eq!(c.get(0, 4), [0; 4]);
}

#[test]
fn a_pair_replies_to_no_other_port_than_its_peers() {
    if !is_apart("a_pair_replies_to_no_other_port_than_its_peers", "roce") {
        return;
    }
    let (mut a, mut b) = connected();
    let rkey = b.mr.rkey();
    let write = |a: &mut End, b: &End| {
        let sges = [a.sge(0, 4)];
        let write = SendWr::write(1, &sges, b.mr.addr() as u64, rkey).with_flags(SendFlags::SIGNALED);
        a.send(&[write]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
    };
    a.put(0, b"good");
    write(&mut a, &b);
    let forger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = forger.local_addr().unwrap().port();
    let sent = counted_at_port("packets_sent");
    // Old sequence numbers, the next one, and some that may follow: the port sends no packet.
    for psn in [0, 1, 2, 3, 100, 0x80_0000, 0xFF_FFFF] {
        let forged = write_packet(&b, psn, rkey, Ipv4Addr::LOCALHOST, port);
        strike(&mut b, &forger, &forged, "dropped_foreign");
    }
    // Nor does it from the port that all processes of the user share.
    let shared = shared_socket(Ipv6Addr::UNSPECIFIED.into(), UDP_PORT);
    let forged = write_packet(&b, 1, rkey, Ipv4Addr::LOCALHOST, UDP_PORT);
    strike(&mut b, &shared, &forged, "dropped_foreign");
    assert_eq!(counted_at_port("packets_sent"), sent);
    assert_eq!(b.get(0, 4), b"good");
    write(&mut a, &b);
}

#[test]
fn drops_and_counts_unwanted_messages_to_queue_pair_1() {
    if !is_apart("drops_and_counts_unwanted_messages_to_queue_pair_1", "roce") {
        return;
    }
    /// Maximum for one host.
    const WAITING_MAX: usize = 128;
    let (_a, mut b) = connected();
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let bytes = message();
    let honest = management_packet(&stranger, QKEY, &bytes);
    strike(&mut b, &stranger, &honest, "dropped_unknown");
    let management = Management::open().unwrap();
    assert!(management.claim().unwrap());
    let mut foreign = bytes;
    foreign[1] ^= 0xFF;
    for garbage in [&[][..], &bytes[..252], &[bytes, bytes].concat(), &foreign, &[0xFF; 256]] {
        strike(&mut b, &stranger, &management_packet(&stranger, QKEY, garbage), "dropped_malformed");
    }
    strike(&mut b, &stranger, &management_packet(&stranger, QKEY ^ 1, &bytes), "dropped_unwanted");
    assert_eq!(management.take(), None);
    for _ in 0..WAITING_MAX {
        strike(&mut b, &stranger, &honest, "packets_received");
    }
    strike(&mut b, &stranger, &honest, "dropped_unwanted");
    let taken = std::iter::from_fn(|| management.take()).inspect(|taken| assert_eq!(taken.bytes, bytes));
    assert_eq!(taken.count(), WAITING_MAX);
    strike(&mut b, &stranger, &honest, "packets_received");
    assert!(management.take().is_some(), "and who is honest is heard");
}
