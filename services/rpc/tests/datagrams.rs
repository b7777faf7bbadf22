//! Results as datagrams: from other senders, in any order, more than once; and authorization of their receivers.

mod support;

use std::time::Instant;

use farcall_link::ResponsePath;
use farcall_link::bootstrap::RefusalKind;
use farcall_rpc::wire::*;
use farcall_rpc::*;
use farcall_verbs::Endpoint;
use support::sender::Sender;
use support::*;

type Herd = OverUc<DatagramReply>;

/// Number of receives that a client of the default window posts.
const RECEIVES: usize = 32;

/// Sends a response with a result of 16 bytes, or its first bytes.
fn send(sender: &mut Sender, seq: Seq, key: TailKey, result: u8, len_bytes: usize) {
    let header =
        ResponseHeader { seq, len_bytes: 16, total_len_bytes: 16, credits: 16, ..ResponseHeader::default() };
    sender.send_first(&header.encode(), &[result; 16], key.tail(seq), len_bytes);
}

const WHOLE: usize = RESPONSE_HEADER_BYTES + 16 + TAIL_BYTES;

/// Returns a client, its key, and a sender of datagrams to it.
fn client_and_sender(world: &mut World) -> (Caller<Herd>, TailKey, Sender) {
    let mut client = Caller::<Herd>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let hello = client.hello().unwrap();
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    let key = TailKey(welcome.tail_key.0);
    client.welcome(welcome, now).unwrap();
    let mut sender = Sender::new(&world.nic);
    sender.aim(&world.nic, &hello.datagrams.unwrap());
    (client, key, sender)
}

/// Makes iterations of the client alone until it has dropped these numbers of datagrams.
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
    let call = client.submit(ECHO, b"mine", CallContext::default(), world.now()).unwrap();
    let mut strangers = 0;
    // More than there are receives: each one is posted again.
    for _ in 0..RECEIVES {
        for (seq, key, len_bytes) in [
            (Seq::FIRST, TailKey(!key.0), WHOLE),
            (Seq(77), TailKey(!key.0), WHOLE),
            (Seq::FIRST, key, WHOLE - 1),
            (Seq::FIRST, key, 8),
        ] {
            send(&mut sender, seq, key, 9, len_bytes);
            strangers += 1;
            until_dropped(&world, &mut client, 0, strangers);
        }
    }
    assert_eq!(world.finish(&mut client), (call, Ok(b"mine".to_vec())));
    assert_eq!(world.server.handler().executed, 1);
}

#[test]
fn delivers_datagram_results_once_and_in_order() {
    let mut world = World::new();
    let (mut client, key, mut sender) = client_and_sender(&mut world);
    let calls: Vec<CallId> =
        (0..3).map(|_| client.submit(ECHO, b"x", CallContext::default(), world.now()).unwrap()).collect();
    for (seq, result, repeated) in [(3, 30, 0), (3, 31, 1), (2, 20, 1), (2, 21, 2)] {
        send(&mut sender, Seq(seq), key, result, WHOLE);
        until_dropped(&world, &mut client, repeated, 0);
        assert!(client.next_completion().is_none(), "the first result has not come");
    }
    send(&mut sender, Seq(1), key, 10, WHOLE);
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
    send(&mut sender, Seq(1), key, 11, WHOLE);
    until_dropped(&world, &mut client, 3, 0);
    assert!(client.next_completion().is_none());
}

#[test]
fn ignores_stale_bytes_of_an_earlier_datagram() {
    let mut world = World::new();
    let (mut client, key, mut sender) = client_and_sender(&mut world);
    // Complete, but not for a message in flight.
    send(&mut sender, Seq::FIRST, key, 1, WHOLE);
    until_dropped(&world, &mut client, 1, 0);
    for strangers in 1..RECEIVES as u64 {
        send(&mut sender, Seq(77), TailKey(!key.0), 0, WHOLE);
        until_dropped(&world, &mut client, 1, strangers);
    }
    // The first receive is used again. It still holds the tail, after the end of this datagram.
    let call = client.submit(ECHO, b"mine", CallContext::default(), world.now()).unwrap();
    send(&mut sender, Seq::FIRST, key, 2, WHOLE - TAIL_BYTES);
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
fn resumes_without_datagrams_if_results_are_too_long() {
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
