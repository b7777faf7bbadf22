//! A client that violates the protocol gets one clear error, its connection is closed, and no other state changes.

mod support;

use std::time::Instant;

use farcall_link::bootstrap::{Features, Refusal, RefusalKind};
use farcall_rpc::wire::*;
use farcall_rpc::*;
use farcall_verbs::{Endpoint, Wc};
use support::rogue::Rogue;
use support::*;

/// Makes iterations of the server until it closes a connection. Returns the reason, and the refusal for the client.
fn closing(world: &mut World) -> (String, Option<Refusal>) {
    let (start, now) = (Instant::now(), world.now());
    let event = loop {
        world.server.progress(now);
        if let Some(event) = world.server.poll_event() {
            break event;
        }
        // The device's service thread may still hold a SEND, and pass it on a moment later.
        assert!(start.elapsed() < LOST, "the connection stays open");
    };
    match event {
        ResponderEvent::Closed { why: Broken::Protocol(why), refusal, .. } => (why, refusal),
        event => panic!("{event:?}"),
    }
}

/// Sends one message. Returns the server's error for the client and its event for the driver.
fn violate_by(preset: &str, words: impl FnOnce(&Rogue) -> [u64; 6], tail: bool) -> (Status, String) {
    let mut world = World::new();
    let mut honest = world.client::<FetchThenReply>();
    let mut rogue = Rogue::connect(&mut world, preset);
    let words = words(&rogue);
    rogue.send(words, tail);
    let (why, tell) = closing(&mut world);
    let tell = tell.unwrap();
    assert_eq!((tell.kind, world.server.counters().violations.get()), (RefusalKind::Malformed, 1));
    assert_eq!(world.server.handler().executed, 1, "only what was honest");
    let (status, text) = rogue.answer();
    assert_eq!(text, why);
    assert_eq!(world.call(&mut honest, ECHO, b"honest").unwrap(), b"honest");
    assert_eq!(world.server.detached_sessions(), 0, "nothing of it is kept");
    (status, text)
}

/// Sends the message under both request paths.
fn violate(words: impl Fn(&Rogue) -> [u64; 6]) -> (Status, String) {
    let written = violate_by("server-reply", &words, true);
    assert_eq!(written.0, violate_by("send-write", words, true).0);
    written
}

#[test]
fn closes_the_connection_of_a_wrong_or_incomplete_send() {
    let (status, text) =
        violate_by("send-write", |r| RequestHeader { seq: r.seq.next(), ..r.header() }.encode(), true);
    assert!(status == Status::BAD_REQUEST && text.contains("another one"), "{text}");
    let (status, text) = violate_by("send-write", |r| r.header().encode(), false);
    assert!(status == Status::BAD_REQUEST && text.contains("not whole"), "{text}");
    let flags = Mode::Reply.flags() | RequestFlags::CHECKSUM;
    let mut world = World::new();
    let mut rogue = Rogue::connect_with(&mut world, "send-write", Features::KICK | Features::CHECKSUM);
    rogue.send(RequestHeader { flags, crc: 12_345, ..rogue.header() }.encode(), true);
    let now = world.now();
    while world.server.connections() == 1 {
        world.server.progress(now);
    }
    let why = format!("{:?}", world.server.poll_event());
    assert!(why.contains("not whole"), "{why}");
}

#[test]
fn closes_only_the_connection_of_an_impossible_message() {
    let (status, text) = violate(|r| RequestHeader { len_bytes: 1 << 29, ..r.header() }.encode());
    assert!(status == Status::BAD_REQUEST && text.contains("536870912 bytes"), "{text}");
    let (status, text) = violate(|r| {
        let mut words = r.header().encode();
        words[1] |= 0x84 << 24;
        words
    });
    assert!(status == Status::BAD_REQUEST && text.contains("contradict each other"), "{text}");
    let (status, text) = violate(|r| {
        let mut words = r.header().encode();
        words[1] ^= 0x7 << 16;
        words
    });
    assert!(status == Status::BAD_REQUEST && text.contains("version"), "{text}");
    let (status, text) = violate(|r| RequestHeader { session: 1, ..r.header() }.encode());
    assert!(status == Status::WRONG_SESSION && text.contains("session"), "{text}");
    let (status, _) = violate(|r| RequestHeader { incarnation: 77, ..r.header() }.encode());
    assert_eq!(status, Status::WRONG_SESSION);
    let part = |r: &Rogue| RequestHeader { flags: Mode::Reply.flags() | RequestFlags::PART, ..r.header() };
    let (_, text) = violate(|r| part(r).encode());
    assert!(text.contains("without its numbers"), "{text}");
    let (_, text) = violate(|r| RequestHeader { len_bytes: 8, ..part(r) }.encode());
    assert!(text.contains("does not follow"), "{text}");
    let collect =
        |r: &Rogue| RequestHeader { flags: Mode::Reply.flags() | RequestFlags::COLLECT, ..r.header() };
    let (status, text) = violate(|r| RequestHeader { len_bytes: 8, ..collect(r) }.encode());
    assert!(status == Status::BAD_REQUEST && text.contains("collects, with a payload"), "{text}");
    let batch = |r: &Rogue| RequestHeader { flags: Mode::Reply.flags() | RequestFlags::BATCH, ..r.header() };
    let (status, text) = violate(|r| batch(r).encode());
    assert!(status == Status::BAD_REQUEST && text.contains("the end of its batch"), "{text}");
    let (_, text) = violate(|r| RequestHeader { len_bytes: 8, ..batch(r) }.encode());
    assert!(text.contains("batch version 0"), "{text}");
}

#[test]
fn a_message_without_its_tail_is_not_a_message() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world, "server-reply");
    let words = rogue.header().encode();
    rogue.send(words, false);
    let now = world.now();
    for _ in 0..10 {
        world.server.progress(now);
    }
    assert_eq!((world.server.handler().executed, world.server.connections()), (1, 1));
    rogue.send(words, true);
    world.server.progress(now);
    assert_eq!((rogue.answer().0, world.server.handler().executed), (Status::OK, 2));
}

#[test]
fn wrong_wake_ups_are_harmless() {
    let mut world = World::new();
    let mut rogue = Rogue::connect(&mut world, "server-reply");
    for imm in [0, u32::MAX, Imm::Push { oldest_low: 7_777, count: 4_095 }.encode()] {
        rogue.qp.kick(&rogue.welcome.grants.messages, imm).unwrap();
    }
    let (start, now) = (Instant::now(), world.now());
    // One after another, each after the receive of the previous one was consumed.
    while world.server.counters().kicks.get() < 3 {
        assert!(start.elapsed() < LOST, "{} wake-ups came", world.server.counters().kicks.get());
        world.server.progress(now);
        let mut wc = [Wc::default()];
        if rogue.cq.poll(&mut wc).unwrap() == 1 {
            rogue.qp.complete(&wc[0]);
        }
    }
    assert_eq!((world.server.counters().kicks.get(), world.server.connections()), (3, 1));
    let words = rogue.header().encode();
    rogue.send(words, true);
    world.server.progress(now);
    assert_eq!(rogue.answer().0, Status::OK);
}

#[test]
fn a_first_request_of_compact_form_closes_its_connection() {
    let mut world = World::new();
    let mut rogue = Rogue::connect_with(&mut world, "server-reply", Features::KICK | Features::COMPACT);
    rogue.send(RequestHeader { form: Form::Compact, ..rogue.header() }.encode(), true);
    let (why, _) = closing(&mut world);
    assert!(why.contains("none of full form came before"), "{why}");
    assert_eq!(world.server.handler().executed, 0);
}

#[test]
fn a_request_whose_checksum_never_matches_gets_a_clear_error() {
    let mut world = World::new();
    let mut rogue = Rogue::connect_with(&mut world, "server-reply", Features::KICK | Features::CHECKSUM);
    let flags = Mode::Reply.flags() | RequestFlags::CHECKSUM;
    let words = RequestHeader { flags, crc: 12_345, ..rogue.header() }.encode();
    rogue.send(words, true);
    let now = world.now();
    // For a while the server assumes that the message is not completely placed yet.
    for _ in 0..1_000 {
        world.server.progress(now);
    }
    assert_eq!(world.server.connections(), 1);
    let closed = (0..100_000).find_map(|_| {
        world.server.progress(now);
        world.server.poll_event()
    });
    let Some(ResponderEvent::Closed { why: Broken::Protocol(why), .. }) = closed else {
        panic!("the connection stays open");
    };
    assert!(why.contains("checksum"), "{why}");
    assert_eq!((world.server.handler().executed, world.server.connections()), (0, 0));
}

#[test]
fn closes_two_violators_in_one_iteration() {
    let mut world = World::new();
    let mut honest = world.client::<Fetch>();
    // WRITEs have been placed when they complete; a SEND may arrive one iteration later.
    let presets = ["server-reply", "send-write", "server-reply"];
    let mut rogues = presets.map(|preset| Rogue::connect(&mut world, preset));
    for rogue in &mut rogues {
        let words = RequestHeader { len_bytes: 1 << 29, ..rogue.header() }.encode();
        rogue.send(words, true);
    }
    let (start, now) = (Instant::now(), world.now());
    while world.server.connections() > 1 {
        assert!(start.elapsed() < LOST, "{} connections stay open", world.server.connections());
        world.server.progress(now);
    }
    assert_eq!((world.server.counters().violations.get(), world.server.connections()), (3, 1));
    assert_eq!(world.call(&mut honest, ECHO, b"honest").unwrap(), b"honest");
}
