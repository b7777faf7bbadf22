//! Processes of a user that share the RoCEv2 port of a network namespace, join, exit and are killed. Each test runs in
//! a namespace of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::support::apart::{ONE_SOURCE_PORT, counted_at_port, is_apart, is_apart_with, shared_socket};
use crate::support::datagrams::{GRH, Ud, slot};
use crate::support::process::*;
use crate::support::*;
use farcall_softnic::Management;
use farcall_verbs::{
    AhAttr, Gid, Mtu, QpAttr, QpCap, QpType, RecvWr, SendWr, UdTarget, Wc, WcOpcode, WcStatus,
};
use farcall_wire::cm::{Mad, Message};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, icrc};
use farcall_wire::{Operation, Packet, Psn};

/// An end with a connected and a datagram queue pair, which send back what they receive.
struct Both {
    connected: End,
    datagrams: Ud,
}

impl Both {
    fn new() -> Self {
        Self { connected: End::of(QpType::Rc, QpCap::default()), datagrams: Ud::new() }
    }

    fn numbers(&self) -> [u64; 4] {
        [self.connected.qp.qp_num().into(), self.datagrams.qpn().into(), 0, 0]
    }
}

#[test]
fn child_entry() {
    let Some((role, _, mut line)) = role() else { return };
    match role.as_str() {
        "manager" => return manage(&mut line),
        "answerer" => return answer(&mut line),
        _ => {}
    }
    let mut both = Both::new();
    line.say(both.numbers());
    let [peer, ..] = line.hear().unwrap();
    both.connected.connect(peer as u32);
    both.connected.recv(0, &[both.connected.sge(0, 64)]);
    both.datagrams.recv(0, 64);
    line.say([1, 0, 0, 0]);
    loop {
        if let Some(wc) = both.connected.poll()
            && wc.opcode == WcOpcode::RECV
        {
            assert_eq!(wc.status, WcStatus::SUCCESS);
            let back = [both.connected.sge(64, 64)];
            both.connected.put(64, &both.connected.get(0, 64));
            both.connected.recv(0, &[both.connected.sge(0, 64)]);
            both.connected.send(&[SendWr::send(1, &back)]);
        }
        if let Some(wc) = both.datagrams.end.poll()
            && wc.opcode == WcOpcode::RECV
        {
            let got = both.datagrams.payload(&wc);
            both.datagrams.recv(0, 64);
            both.datagrams.end.put(slot(9), &got);
            let to = both.datagrams.to(wc.src_qp, QKEY);
            let sges = [both.datagrams.end.sge(slot(9), got.len())];
            both.datagrams.end.send(&[SendWr::send_to(1, &sges, to)]);
        }
    }
}

/// Reports on each request whether it holds queue pair 1, and how many messages it has received.
fn manage(line: &mut Line) {
    let management = Management::open().unwrap();
    loop {
        // Messages first, because a process that was stopped does not know yet that it is no longer the holder.
        let came = std::iter::from_fn(|| management.take()).count();
        line.say([management.claim().unwrap().into(), came as u64, 0, 0]);
        if line.hear().is_none() {
            return;
        }
    }
}

/// Receives a message, and replies to it on each request. Reports whether it was still the holder, and whether the reply
/// was sent.
fn answer(line: &mut Line) {
    let management = Management::open().unwrap();
    let message = loop {
        assert!(management.claim().unwrap());
        if let Some(message) = management.take() {
            break message;
        }
        line.say([0; 4]);
        std::thread::sleep(Duration::from_millis(1));
    };
    line.say([1, 0, 0, 0]);
    while line.hear().is_some() {
        let is_held = management.is_held();
        let is_sent = management.send_as_holder(message.src, &message.bytes).unwrap();
        line.say([2, is_held.into(), is_sent.into(), 0]);
    }
}

#[test]
fn a_stopped_holder_does_not_reply_to_the_message_that_it_holds() {
    if !is_apart("a_stopped_holder_does_not_reply_to_the_message_that_it_holds", "roce") {
        return;
    }
    let mut holder = start("answerer", &[]);
    assert_eq!(holder.line.hear(), Some([0; 4]));
    let management = Management::open().unwrap();
    send_message(&management);
    while holder.line.hear().unwrap() != [1, 0, 0, 0] {}
    holder.line.say([0; 4]);
    assert_eq!(holder.line.hear(), Some([2, 1, 1, 0]), "it is the holder");
    // Its own reply comes to it, because it has the queue pair.
    holder.stop();
    let began = Instant::now();
    while !management.claim().unwrap() {
        assert!(began.elapsed() < LOST, "it is not taken over");
        std::thread::sleep(Duration::from_millis(1));
    }
    holder.signal(libc::SIGCONT);
    for _ in 0..3 {
        holder.line.say([0; 4]);
        assert_eq!(holder.line.hear(), Some([2, 0, 0, 0]), "it replies for another");
    }
    assert_eq!(management.take(), None);
}

/// Sends a connection management message to queue pair 1 of this host.
fn send_message(management: &Management) {
    let mad = Mad { transaction_id: 1, local_comm_id: 2, remote_comm_id: 3, message: Message::Rtu };
    management.send(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), &mad.encode()).unwrap();
}

#[test]
fn takes_queue_pair_1_over_from_a_stopped_holder() {
    if !is_apart("takes_queue_pair_1_over_from_a_stopped_holder", "roce") {
        return;
    }
    let mut holder = start("manager", &[]);
    let hear = |holder: &mut Other| {
        let [holds, came, ..] = holder.line.hear().unwrap();
        holder.line.say([1, 0, 0, 0]);
        (holds == 1, came)
    };
    assert_eq!(hear(&mut holder), (true, 0));
    let management = Management::open().unwrap();
    for _ in 0..200 {
        assert!(!management.claim().unwrap(), "the holder runs");
        hear(&mut holder);
    }
    send_message(&management);
    let began = Instant::now();
    while hear(&mut holder).1 == 0 {
        assert!(began.elapsed() < LOST, "the message is lost");
    }
    holder.stop();
    send_message(&management);
    let began = Instant::now();
    while !management.claim().unwrap() {
        assert!(began.elapsed() < LOST, "it is not taken over");
        std::thread::sleep(Duration::from_millis(1));
    }
    send_message(&management);
    while management.take().is_none() {
        assert!(began.elapsed() < LOST, "what comes goes to the stopped process");
    }
    holder.signal(libc::SIGCONT);
    // Its first report may predate its stop.
    hear(&mut holder);
    let said: Vec<_> = (0..20).map(|_| hear(&mut holder)).collect();
    assert_eq!(said, [(false, 0); 20], "it takes what had come to it, or holds it still");
    assert!(management.claim().unwrap());
}

/// A process that sends back what it receives, and this process's ends of its connections.
struct Echo {
    other: Other,
    ends: Both,
    their_datagrams: u32,
    rounds: u64,
}

impl Echo {
    fn start() -> Self {
        let mut other = start("echo", &[]);
        let ends = Both::new();
        let [connected, datagrams, ..] = other.line.hear().unwrap();
        let mut echo = Self { other, ends, their_datagrams: datagrams as u32, rounds: 0 };
        echo.other.line.say(echo.ends.numbers());
        echo.ends.connected.connect(connected as u32);
        assert_eq!(echo.other.line.hear(), Some([1, 0, 0, 0]));
        echo
    }

    /// Sends over both queue pairs, and waits for the responses.
    fn round(&mut self) {
        self.rounds += 1;
        let data = bytes(64, self.rounds);
        let end = &mut self.ends.connected;
        end.put(0, &data);
        end.recv(2, &[end.sge(64, 64)]);
        end.send(&[SendWr::send(1, &[end.sge(0, 64)]).with_flags(SIGNALED)]);
        let mut ended = [end.wait(), end.wait()];
        ended.sort_by_key(|wc| wc.wr_id);
        assert_eq!(ended.map(|wc| (wc.wr_id, wc.status)), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
        assert!(end.get(64, 64) == data, "what came back differs");

        let Ud { end, ah } = &mut self.ends.datagrams;
        end.put(0, &data);
        let into = [end.sge(slot(3), GRH + 64)];
        // SAFETY: the region outlives the queue pair.
        unsafe { end.qp.post_recv(&[RecvWr::new(3, &into)]) }.unwrap();
        let to = UdTarget { ah: ah.as_raw(), remote_qpn: self.their_datagrams, remote_qkey: QKEY };
        end.send(&[SendWr::send_to(4, &[end.sge(0, 64)], to)]);
        let wc = end.wait();
        assert_eq!((wc.wr_id, wc.status, wc.src_qp), (3, WcStatus::SUCCESS, self.their_datagrams));
        assert!(end.get(slot(3) + GRH, 64) == data, "the datagram that came back differs");
    }
}

#[test]
fn shares_the_port_while_processes_join_and_are_killed() {
    if !is_apart("shares_the_port_while_processes_join_and_are_killed", "roce") {
        return;
    }
    let own = || u64::from(std::process::id());
    let seed = std::env::var("FARCALL_TEST_SEED").map_or_else(|_| own(), |seed| seed.parse().unwrap());
    println!("FARCALL_TEST_SEED={seed}");
    let mut random: u64 = seed;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    // The process that opened the port exits first.
    let mut founder = start("echo", &[]);
    let [theirs, ..] = founder.line.hear().unwrap();
    founder.line.say([1, 0, 0, 0]);
    assert!(theirs != 0 && founder.line.hear().is_some());
    let mut steady = Echo::start();
    steady.round();
    founder.end();
    let mut others: Vec<Echo> = Vec::new();
    for _ in 0..24 {
        steady.round();
        if others.len() < 3 {
            others.push(Echo::start());
        }
        others.iter_mut().for_each(Echo::round);
        if next(3) > 0 {
            let mut victim = others.swap_remove(next(others.len() as u64) as usize);
            if next(2) == 0 {
                // With a request in flight.
                let end = &mut victim.ends.connected;
                end.send(&[SendWr::send(1, &[end.sge(0, 64)])]);
            }
            victim.other.end();
        }
        steady.round();
    }
    others.iter_mut().for_each(Echo::round);
}

const LONG_BYTES: usize = 1 << 20;

/// Two queue pairs of this process, on which a long message arrives in GRO batches or singly.
struct Pairs([End; 2]);

impl Pairs {
    fn new(over: IpAddr) -> Self {
        let mut ends = [(); 2].map(|()| End::new(LONG_BYTES, ALL, QpCap::default()));
        ends.iter_mut().for_each(End::init);
        let [a, b] = ends.each_ref().map(|end| end.qp.qp_num());
        let dgid = match over {
            IpAddr::V4(v4) => Gid::from_ipv4(v4),
            IpAddr::V6(v6) => Gid(v6.octets()),
        };
        for (end, dest) in ends.iter_mut().zip([b, a]) {
            let path = AhAttr { dgid, ..end.path() };
            end.qp.modify(&QpAttr::rtr(dest, 0, path, Mtu::Mtu4096)).unwrap();
            end.rts();
        }
        Self(ends)
    }

    /// Returns the number of packets of a long message that arrived in GRO batches.
    fn come_in_trains(&mut self) -> u64 {
        let [a, b] = &mut self.0;
        let before = counted_at_port("received_in_trains");
        let sges = [a.sge(0, LONG_BYTES)];
        let write = SendWr::write(1, &sges, b.mr.addr() as u64, b.mr.rkey());
        a.send(&[write.with_flags(SIGNALED)]);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        counted_at_port("received_in_trains") - before
    }
}

/// Sends datagrams to several queue pairs in one GSO batch, as a network may combine datagrams from one address.
fn send_train(socket: &UdpSocket, to: IpAddr, numbers: [u32; 2]) {
    let flow =
        icrc::Flow { src: to, dst: to, src_port: socket.local_addr().unwrap().port(), dst_port: UDP_PORT };
    let datagrams = numbers.map(|dest_qpn| {
        let packet = Packet {
            transport: QpType::Rc,
            operation: Operation::CongestionNotification,
            solicited: false,
            ack_req: false,
            dest_qpn,
            psn: Psn::new(0),
        };
        let mut headers = [0; HEADERS_BYTES_MAX];
        let len_bytes = encode(&packet, 0, &mut headers);
        let mut datagram = headers[..len_bytes].to_vec();
        datagram.resize(len_bytes + ICRC_BYTES, 0);
        icrc::seal(&flow, &mut datagram);
        datagram
    });
    let len_bytes = datagrams[0].len() as libc::c_int;
    // SAFETY: the option's value is an integer, and a local variable that outlives the call.
    let set = unsafe {
        let (value, size) = ((&raw const len_bytes).cast(), size_of_val(&len_bytes) as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, size)
    };
    assert_eq!(set, 0);
    let to = match to {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    socket.send_to(&datagrams.concat(), (to, UDP_PORT)).unwrap();
}

fn trains_pause_while_one_is_for_several(over: IpAddr) {
    let mut echo = Echo::start();
    let mut pairs = Pairs::new(over);
    echo.round();
    assert!(pairs.come_in_trains() > 0, "the port is shared");
    let numbers = [pairs.0[0].qp.qp_num(), echo.their_datagrams];
    let poll_until = |pairs: &mut Pairs, counter: &str, count: u64| {
        let began = Instant::now();
        while counted_at_port(counter) < count {
            assert_eq!(pairs.0[0].cq.poll(&mut [Wc::default()]).unwrap(), 0);
            assert!(began.elapsed() < LOST, "{counter} stays below {count}");
        }
    };
    // GRO batches of an unknown sender, from another port, have no effect.
    let stranger = shared_socket(over, 0);
    let dropped = counted_at_port("dropped_foreign");
    for sent in 1..=100 {
        send_train(&stranger, over, numbers);
        poll_until(&mut pairs, "dropped_foreign", dropped + sent);
    }
    assert_eq!(counted_at_port("trains_for_several"), 0);
    assert!(pairs.come_in_trains() > 0, "a stranger has switched trains off");
    // The peer sends from the port that all processes of this user share. A pause may end while this test is not scheduled.
    let of_user = shared_socket(Ipv6Addr::UNSPECIFIED.into(), UDP_PORT);
    let began = Instant::now();
    loop {
        send_train(&of_user, over, numbers);
        assert_eq!(pairs.0[0].cq.poll(&mut [Wc::default()]).unwrap(), 0);
        if pairs.come_in_trains() == 0 {
            break;
        }
        assert!(began.elapsed() < LOST, "nobody noticed");
    }
    assert!(counted_at_port("trains_for_several") > 0);
    echo.round();
    let began = Instant::now();
    while pairs.come_in_trains() == 0 {
        assert!(began.elapsed() < LOST, "trains do not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    echo.round();
}

#[test]
fn trains_pause_if_one_by_ipv4_is_for_several_processes() {
    if is_apart_with("trains_pause_if_one_by_ipv4_is_for_several_processes", &ONE_SOURCE_PORT) {
        trains_pause_while_one_is_for_several(Ipv4Addr::LOCALHOST.into());
    }
}

#[test]
fn trains_pause_if_one_by_ipv6_is_for_several_processes() {
    if is_apart_with("trains_pause_if_one_by_ipv6_is_for_several_processes", &ONE_SOURCE_PORT) {
        trains_pause_while_one_is_for_several(Ipv6Addr::LOCALHOST.into());
    }
}

#[test]
fn a_stopped_process_does_not_keep_others_from_the_port() {
    if !is_apart("a_stopped_process_does_not_keep_others_from_the_port", "roce") {
        return;
    }
    let mut first = Echo::start();
    first.round();
    first.other.stop();
    let mut second = Echo::start();
    (0..20).for_each(|_| second.round());
    first.other.signal(libc::SIGCONT);
    first.round();
}
