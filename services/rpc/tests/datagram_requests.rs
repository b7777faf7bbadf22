//! Requests as datagrams: from other senders, in any order, more than once; and the state that their clients leave at
//! the server.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use farcall_link::bootstrap::{Features, Hello, Welcome};
use farcall_link::{Entropy, Nic, SplitMix64};
use farcall_rpc::wire::*;
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::Endpoint;
use support::sender::Sender;
use support::*;

type UdRpc = OverUd<DatagramReply>;

/// Number of receives that a server thread posts for all its clients.
const RECEIVES: u64 = 1_024;
const PAYLOAD_BYTES: usize = 16;
const WHOLE: usize = REQUEST_HEADER_BYTES + PAYLOAD_BYTES + TAIL_BYTES;

/// Sends a request, or its first bytes.
fn send(sender: &mut Sender, header: RequestHeader, key: TailKey, len_bytes: usize) {
    sender.send_first(&header.encode(), &[7; PAYLOAD_BYTES], key.tail(header.seq), len_bytes);
}

/// A client whose requests are composed by the test. Its endpoint receives the responses, and counts them as
/// duplicates.
struct Rogue {
    sender: Sender,
    client: Caller<UdRpc>,
    welcome: Welcome,
    key: TailKey,
}

impl Rogue {
    fn connect(world: &mut World) -> Self {
        Self::connect_with(world, |_| ())
    }

    fn connect_with(world: &mut World, change: impl FnOnce(&mut Hello)) -> Self {
        let mut sender = Sender::new(&world.nic);
        let mut client = Caller::<UdRpc>::new(world.nic.clone(), CallerConfig::default()).unwrap();
        let mut hello = client.hello().unwrap();
        hello.qp = sender.pair.info(&world.nic);
        change(&mut hello);
        let now = world.now();
        let (_, welcome) = world.server.accept(&hello, now).unwrap();
        sender.aim(&world.nic, &welcome.qp);
        let key = TailKey(welcome.tail_key.0);
        client.welcome(welcome.clone(), now).unwrap();
        Self { sender, client, welcome, key }
    }

    fn header(&self, seq: u32) -> RequestHeader {
        RequestHeader {
            seq: Seq(seq),
            len_bytes: PAYLOAD_BYTES as u32,
            flags: Mode::Reply.flags(),
            method: ECHO,
            session: self.welcome.session.tag(),
            incarnation: self.welcome.incarnation as u32,
            ..RequestHeader::default()
        }
    }

    fn send(&mut self, seq: u32) {
        let header = self.header(seq);
        send(&mut self.sender, header, self.key, WHOLE);
    }

    /// Makes iterations of its endpoint until it has received `count` responses.
    fn until_answered(&mut self, world: &mut World, count: u64) {
        let start = Instant::now();
        while self.client.counters().repeated.get() < count {
            assert!(start.elapsed() < LOST, "{:?}", self.client.counters());
            let now = world.now();
            world.server.progress(now);
            self.client.progress(now);
            std::thread::yield_now();
        }
        assert_eq!(self.client.counters().repeated.get(), count);
    }
}

/// Makes iterations of the server until it has executed, received again, and dropped these numbers of requests.
fn until(world: &mut World, executed: u64, repeated: u64, strangers: u64) {
    let start = Instant::now();
    loop {
        let now = world.now();
        world.server.progress(now);
        let counters = world.server.counters();
        let seen = (counters.calls.get(), counters.repeated.get(), counters.strangers.get());
        if seen == (executed, repeated, strangers) {
            return;
        }
        assert!(start.elapsed() < LOST, "{seen:?} and not {:?}", (executed, repeated, strangers));
        std::thread::yield_now();
    }
}

#[test]
fn drops_and_counts_requests_of_another_sender() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    let mut stranger = Sender::new(&world.nic);
    stranger.aim(&world.nic, &rogue.welcome.qp);
    let (good, key) = (rogue.header(1), rogue.key);
    let mut strangers = 0;
    // More than there are receives: each one is posted again.
    while strangers <= RECEIVES {
        // Of the correct session, but from another queue pair than its client's.
        send(&mut stranger, good, key, WHOLE);
        for (header, key, len_bytes) in [
            (RequestHeader { session: !good.session, ..good }, key, WHOLE),
            (good, TailKey(!key.0), WHOLE),
            (good, key, WHOLE - 1),
            (good, key, 8),
            (RequestHeader { len_bytes: 1 << 29, ..good }, key, WHOLE),
            // Beyond its window.
            (rogue.header(17), key, WHOLE),
        ] {
            send(&mut rogue.sender, header, key, len_bytes);
        }
        strangers += 7;
        until(&mut world, 0, 0, strangers);
    }
    rogue.send(1);
    until(&mut world, 1, 0, strangers);
    assert_eq!(world.server.connections(), 1);
}

#[test]
fn executes_datagram_requests_once_and_in_order() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    for seq in [3, 2, 16, 3] {
        rogue.send(seq);
    }
    until(&mut world, 0, 0, 0);
    rogue.send(1);
    until(&mut world, 3, 0, 0);
    rogue.until_answered(&mut world, 3);
    // Already executed: answered again, each from its slot.
    for (repeated, seq) in (1..).zip([2, 1, 3, 3]) {
        rogue.send(seq);
        until(&mut world, 3, repeated, 0);
        rogue.until_answered(&mut world, 3 + repeated);
    }
}

#[test]
fn does_not_answer_a_request_from_before_the_window() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    for seq in 1..=17 {
        rogue.send(seq);
        until(&mut world, seq.into(), 0, 0);
    }
    rogue.until_answered(&mut world, 17);
    rogue.send(1);
    until(&mut world, 17, 1, 0);
    rogue.send(2);
    until(&mut world, 17, 2, 0);
    rogue.until_answered(&mut world, 18);
}

#[test]
fn ignores_stale_bytes_of_an_earlier_datagram() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    let request = rogue.header(1);
    // Complete, with the tail of the request, but of another session.
    for strangers in 1..=RECEIVES {
        let header = RequestHeader { session: !request.session, ..request };
        send(&mut rogue.sender, header, rogue.key, WHOLE);
        until(&mut world, 0, 0, strangers);
    }
    // The first receive is used again. It still holds the tail, after the end of this datagram.
    send(&mut rogue.sender, request, rogue.key, WHOLE - TAIL_BYTES);
    until(&mut world, 0, 0, RECEIVES + 1);
}

#[test]
fn keeps_receives_for_others_when_a_client_floods() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    let mut client = world.client::<UdRpc>();
    assert_eq!(world.call(&mut client, ECHO, b"before").unwrap(), b"before");
    // As many as there are receives. None of them can be executed, because the first message is missing.
    for at in 0..RECEIVES as u32 {
        rogue.send(2 + at % 15);
    }
    assert_eq!(world.call(&mut client, ECHO, b"beside").unwrap(), b"beside");
    assert_eq!(world.server.handler().executed, 2);
    rogue.send(1);
    // The other client may have sent a request again while the device resolved its path: such a copy belongs to a
    // session.
    world.serve(2 + 16);
    assert_eq!(world.server.counters().strangers.get(), 0);
}

#[test]
fn drops_a_corrupt_request_and_executes_its_next_copy() {
    let mut world = World::new();
    let mut rogue = Rogue::connect_with(&mut world, |hello| hello.features |= Features::CHECKSUM);
    let header = rogue.header(1);
    let header = RequestHeader { flags: header.flags | RequestFlags::CHECKSUM, ..header };
    let words = RequestHeader::checked_words(&header.encode());
    let crc = rogue.key.checksum(&words, &[7; PAYLOAD_BYTES]);
    send(&mut rogue.sender, RequestHeader { crc: !crc, ..header }, rogue.key, WHOLE);
    until(&mut world, 0, 0, 1);
    send(&mut rogue.sender, RequestHeader { crc, ..header }, rogue.key, WHOLE);
    until(&mut world, 1, 0, 1);
}

#[test]
fn ends_only_the_connection_that_violates_the_protocol() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    let mut client = world.client::<UdRpc>();
    let header = rogue.header(1);
    send(&mut rogue.sender, RequestHeader { incarnation: !header.incarnation, ..header }, rogue.key, WHOLE);
    rogue.until_answered(&mut world, 1);
    let Some(ResponderEvent::Closed { refusal, .. }) = world.server.poll_event() else {
        panic!("it is open")
    };
    assert!(refusal.unwrap().to_string().contains("incarnation"));
    assert_eq!((world.server.connections(), world.server.detached_sessions()), (1, 0));
    // The session has ended.
    rogue.send(1);
    until(&mut world, 0, 0, 1);
    assert_eq!(world.call(&mut client, ECHO, b"beside").unwrap(), b"beside");
}

#[test]
fn drops_datagrams_of_an_earlier_connection() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world);
    rogue.send(1);
    until(&mut world, 1, 0, 0);
    // The same session over another connection, with another queue pair.
    let hello = rogue.client.hello().unwrap();
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    assert_eq!(welcome.resumed.map(|resumed| resumed.next_seq), Some(2));
    rogue.send(2);
    until(&mut world, 1, 0, 1);
}

#[test]
fn sessions_of_one_thread_differ_by_their_tags() {
    let stream = Arc::new(Mutex::new(SplitMix64::new(1)));
    let entropy = Entropy::Seeded(Arc::clone(&stream));
    let nic = Nic::open(&SoftNic::new()).unwrap().with_entropy(entropy);
    let mut world = World::on(nic, ResponderConfig::default());
    let mut session = || {
        let mut client = Caller::<UdRpc>::new(world.nic.clone(), CallerConfig::default()).unwrap();
        let hello = client.hello().unwrap();
        // Repeats earlier random numbers.
        *stream.lock().unwrap() = SplitMix64::new(2);
        let now = world.now();
        world.server.accept(&hello, now).unwrap().1.session.tag()
    };
    let tags = [session(), session(), session()];
    assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[2] != tags[0], "{tags:?}");
}
