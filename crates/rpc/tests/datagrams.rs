//! Results as datagrams: from strangers, in any order, more than once; and who may have them.

mod support;

use std::sync::Arc;
use std::time::Instant;

use farcall_link::bootstrap::{QpInfo, RefusalKind};
use farcall_link::{AddressId, Datagrams, PairConfig, Piece, Region, RegionId, ResponsePath};
use farcall_rpc::wire::*;
use farcall_rpc::*;
use farcall_verbs::{Access, CqInitAttr, Endpoint, RawCq, Wc};
use support::*;

type Herd = OverUc<DatagramReply>;

/// Receives that a client of the default window posts.
const RECEIVES: usize = 32;

/// Somebody who sends datagrams to a client.
struct Sender {
    pair: Datagrams,
    cq: Box<dyn RawCq>,
    memory: Arc<Region>,
    memory_id: RegionId,
    client: AddressId,
}

impl Sender {
    fn new(world: &World, client: &QpInfo) -> Self {
        let nic = &world.nic;
        let cq = nic.context.create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
        let config = PairConfig {
            send_depth: 16,
            recv_depth: 0,
            signal_every: 1,
            inline_max_bytes: 0,
            sges_max: 1,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(nic, &*cq, config, None).unwrap();
        pair.start().unwrap();
        let memory = Arc::new(Region::alloc(&*nic.pd, 4_096, Access::LOCAL_WRITE).unwrap());
        let memory_id = pair.attach(Arc::clone(&memory));
        let client = pair.add_peer(nic, client).unwrap();
        Self { pair, cq, memory, memory_id, client }
    }

    /// Sends a response with a result of 16 bytes, or the first bytes of one.
    fn send(&mut self, seq: Seq, key: TailKey, result: u8, len_bytes: usize) {
        let header = ResponseHeader {
            seq,
            len_bytes: 16,
            total_len_bytes: 16,
            credits: 16,
            ..ResponseHeader::default()
        };
        for (at, word) in header.encode().into_iter().enumerate() {
            self.memory.store_relaxed(8 * at, word);
        }
        self.memory.copy_in(RESPONSE_HEADER_BYTES, &[result; 16]);
        self.memory.store_relaxed(RESPONSE_HEADER_BYTES + 16, key.tail(seq));
        let piece = Piece { region: self.memory_id, offset: 0, len_bytes };
        let ticket = self.pair.send(piece, self.client).unwrap();
        let start = Instant::now();
        while !self.pair.is_done(ticket) {
            assert!(start.elapsed() < LOST, "the datagram is not sent");
            let mut wc = [Wc::default()];
            if self.cq.poll(&mut wc).unwrap() == 1 {
                self.pair.complete(&wc[0]);
            }
        }
    }
}

const WHOLE: usize = RESPONSE_HEADER_BYTES + 16 + TAIL_BYTES;

/// A client, its key, and somebody who sends to it.
fn client_and_sender(world: &mut World) -> (Caller<Herd>, TailKey, Sender) {
    let mut client = Caller::<Herd>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let hello = client.hello().unwrap();
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    let key = TailKey(welcome.tail_key.0);
    client.welcome(welcome, now).unwrap();
    let sender = Sender::new(world, &hello.datagrams.unwrap());
    (client, key, sender)
}

/// Turns of the client alone until so many datagrams came that it did not take.
fn until_dropped(world: &World, client: &mut Caller<Herd>, repeated: u64, strangers: u64) {
    let start = Instant::now();
    loop {
        client.progress(world.now());
        let counters = client.counters();
        let dropped = (counters.repeated.get(), counters.strangers.get());
        if dropped == (repeated, strangers) {
            return;
        }
        assert!(start.elapsed() < LOST, "{dropped:?} and not {:?}", (repeated, strangers));
        std::thread::yield_now();
    }
}

#[test]
fn what_another_than_the_server_sends_is_dropped_and_counted() {
    let mut world = World::new();
    let (mut client, key, mut sender) = client_and_sender(&mut world);
    let call = client.submit(ECHO, b"mine", CallOptions::default(), world.now()).unwrap();
    let mut strangers = 0;
    // More than there are receives: each is posted again.
    for _ in 0..RECEIVES {
        for (seq, key, len_bytes) in [
            (Seq::FIRST, TailKey(!key.0), WHOLE),
            (Seq(77), TailKey(!key.0), WHOLE),
            (Seq::FIRST, key, WHOLE - 1),
            (Seq::FIRST, key, 8),
        ] {
            sender.send(seq, key, 9, len_bytes);
            strangers += 1;
            until_dropped(&world, &mut client, 0, strangers);
        }
    }
    assert_eq!(world.finish(&mut client), (call, Ok(b"mine".to_vec())));
    assert_eq!(world.server.handler().executed, 1);
}

#[test]
fn results_as_datagrams_are_taken_once_and_in_order_however_they_come() {
    let mut world = World::new();
    let (mut client, key, mut sender) = client_and_sender(&mut world);
    let calls: Vec<CallId> =
        (0..3).map(|_| client.submit(ECHO, b"x", CallOptions::default(), world.now()).unwrap()).collect();
    for (seq, result, repeated) in [(3, 30, 0), (3, 31, 1), (2, 20, 1), (2, 21, 2)] {
        sender.send(Seq(seq), key, result, WHOLE);
        until_dropped(&world, &mut client, repeated, 0);
        assert!(client.next_completion().is_none(), "the first result has not come");
    }
    sender.send(Seq(1), key, 10, WHOLE);
    let mut results = Vec::new();
    let start = Instant::now();
    while results.len() < 3 {
        assert!(start.elapsed() < LOST, "{} results", results.len());
        client.progress(world.now());
        while let Some(done) = client.next_completion() {
            results.push((done.call, done.result.unwrap()[0]));
        }
    }
    assert_eq!(results, [(calls[0], 10), (calls[1], 20), (calls[2], 30)]);
    sender.send(Seq(1), key, 11, WHOLE);
    until_dropped(&world, &mut client, 3, 0);
    assert!(client.next_completion().is_none());
}

#[test]
fn what_an_earlier_datagram_left_in_a_receive_completes_no_other() {
    let mut world = World::new();
    let (mut client, key, mut sender) = client_and_sender(&mut world);
    // Whole, but of no message in flight.
    sender.send(Seq::FIRST, key, 1, WHOLE);
    until_dropped(&world, &mut client, 1, 0);
    for strangers in 1..RECEIVES as u64 {
        sender.send(Seq(77), TailKey(!key.0), 0, WHOLE);
        until_dropped(&world, &mut client, 1, strangers);
    }
    // The first receive's turn again: the tail that it holds is behind this one's end.
    let call = client.submit(ECHO, b"mine", CallOptions::default(), world.now()).unwrap();
    sender.send(Seq::FIRST, key, 2, WHOLE - TAIL_BYTES);
    until_dropped(&world, &mut client, 1, RECEIVES as u64);
    assert_eq!(world.finish(&mut client), (call, Ok(b"mine".to_vec())));
}

#[test]
fn a_client_that_names_no_queue_pair_for_datagrams_is_refused() {
    let mut world = World::new();
    let mut client = Caller::<Herd>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let mut hello = client.hello().unwrap();
    hello.datagrams = None;
    let now = world.now();
    let refusal = world.server.accept(&hello, now).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Malformed);
    assert!(refusal.to_string().contains("no queue pair"), "{refusal}");
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn a_session_whose_results_are_longer_than_a_datagram_goes_on_without_them() {
    let mut world = World::new();
    let mut client = world.client::<OverUc<ServerReply>>();
    assert_eq!(world.call(&mut client, ECHO, b"x").unwrap(), b"x");
    let mut other = Caller::<Herd>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let mut hello = client.hello().unwrap();
    hello.datagrams = other.hello().unwrap().datagrams;
    hello.plan.response = ResponsePath::Datagram;
    let now = world.now();
    let refusal = world.server.accept(&hello, now).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::OutOfRange);
    assert!(refusal.to_string().contains("4224 bytes"), "{refusal}");
    world.connect(&mut client).unwrap();
    assert_eq!(world.call(&mut client, ECHO, b"y").unwrap(), b"y");
    assert_eq!(client.counters().sessions_resumed.get(), 1);
}
