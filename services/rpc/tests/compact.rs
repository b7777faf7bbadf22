//! Requests without the words that the server already knows.

mod support;

use std::time::Duration;

use farcall_link::bootstrap::Features;
use farcall_rpc::*;
use farcall_verbs::Nanos;
use support::{ECHO, MAKE, World, pattern};

/// Makes a call, and checks that server and client agree on its number. Returns the number of compact messages.
fn call<P: Path>(
    world: &mut World,
    client: &mut Caller<P>,
    method: u16,
    payload: &[u8],
    trace_id: u64,
) -> u64 {
    let before = client.counters().compact.get();
    let context = CallContext { trace_id, ..CallContext::default() };
    let id = client.submit(method, payload, context, world.now()).unwrap();
    let (ended, result) = world.finish(client);
    assert_eq!((ended, world.server.handler().last_call), (id, (id.0, trace_id)));
    let expected = match method {
        MAKE => pattern(u32::from_le_bytes(payload.try_into().unwrap()) as usize),
        _ => payload.to_vec(),
    };
    assert_eq!(result.unwrap(), expected);
    client.counters().compact.get() - before
}

/// Short calls, traced calls, and calls of several messages, one after another.
fn calls_keep_their_numbers<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    assert_eq!(call(&mut world, &mut client, ECHO, b"first", 0), 0, "of full form");
    for size in [0, 1, 32, 33, 1_000] {
        assert_eq!(call(&mut world, &mut client, ECHO, &pattern(size), 0), 1);
    }
    assert_eq!(call(&mut world, &mut client, ECHO, b"traced", 7), 0);
    assert_eq!(call(&mut world, &mut client, ECHO, b"not traced", 0), 1);
    // Its segments are requested by the call's number in messages of full form, so the next message is compact again.
    let length = 20_000u32.to_le_bytes();
    assert_eq!(call(&mut world, &mut client, MAKE, &length, 0), 1);
    assert_eq!(call(&mut world, &mut client, ECHO, b"after pieces", 0), 1);
    assert_eq!(call(&mut world, &mut client, ECHO, &pattern(20_000), 0), 0, "in parts");
    assert_eq!(call(&mut world, &mut client, ECHO, b"after parts", 0), 1);
    assert_eq!(world.server.counters().compact.get(), client.counters().compact.get());
}

#[test]
fn calls_keep_their_numbers_without_carrying_them() {
    calls_keep_their_numbers::<FetchThenReply>();
    calls_keep_their_numbers::<ServerReply>();
    calls_keep_their_numbers::<OverUc<ServerReply>>();
    calls_keep_their_numbers::<OverUc<DatagramReply>>();
    calls_keep_their_numbers::<BySend<SendReply>>();
    calls_keep_their_numbers::<BySend<NotifyThenFetch>>();
}

#[test]
fn skips_the_number_of_a_call_cancelled_before_sending() {
    let mut world = World::new();
    let mut client = world.client::<ServerReply>();
    call(&mut world, &mut client, ECHO, b"known", 0);
    let submit = |client: &mut Caller<ServerReply>, payload: &[u8]| {
        client.submit(ECHO, payload, CallContext::default(), Nanos::default()).unwrap()
    };
    // It waits for a request that is sent in parts.
    submit(&mut client, &pattern(100_000));
    let given_up = submit(&mut client, b"never sent");
    assert!(client.cancel(given_up));
    assert_eq!(world.finish(&mut client).1.unwrap(), pattern(100_000));
    assert_eq!(call(&mut world, &mut client, ECHO, b"after the gap", 0), 0);
    assert_eq!(call(&mut world, &mut client, ECHO, b"without a gap", 0), 1);
}

#[test]
fn requests_that_are_checked_are_compact_too() {
    let mut world = World::new();
    let mut client = world.client_with::<ServerReply>(CallerConfig::default().checksum(true));
    assert_eq!(call(&mut world, &mut client, ECHO, b"first", 0), 0);
    assert_eq!(call(&mut world, &mut client, ECHO, b"second", 0), 1);
    assert_eq!(world.server.counters().violations.get(), 0);
}

#[test]
fn datagrams_name_their_session() {
    let mut world = World::new();
    let mut client = world.client::<OverUd<DatagramReply>>();
    for _ in 0..3 {
        assert_eq!(call(&mut world, &mut client, ECHO, b"datagram", 0), 0);
    }
}

/// Requests of compact form wait for a new connection; the server resumes the session.
fn resume_a_session<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    for _ in 0..3 {
        call(&mut world, &mut client, ECHO, b"known", 0);
    }
    let executed = world.server.handler().executed;
    let ids = [(); 3].map(|()| client.submit(ECHO, b"again", CallContext::default(), world.now()).unwrap());
    world.connect(&mut client).unwrap();
    let ended = [(); 3].map(|()| world.finish(&mut client));
    assert_eq!(ended, ids.map(|id| (id, Ok(b"again".to_vec()))));
    assert_eq!(world.server.handler().executed, executed + 3);
    assert_eq!(world.server.handler().last_call, (ids[2].0, 0));
    assert_eq!(call(&mut world, &mut client, ECHO, b"of the same session", 0), 1);
}

#[test]
fn resumes_a_session_with_compact_requests_after_a_reconnect() {
    resume_a_session::<FetchThenReply>();
    resume_a_session::<ServerReply>();
    resume_a_session::<OverUc<ServerReply>>();
    resume_a_session::<BySend<SendReply>>();
}

#[test]
fn a_server_that_restarted_gets_a_request_of_full_form_first() {
    let mut world = World::new();
    let mut client = world.client::<ServerReply>();
    for _ in 0..3 {
        call(&mut world, &mut client, ECHO, b"known", 0);
    }
    world.restart();
    world.connect(&mut client).unwrap();
    assert_eq!(call(&mut world, &mut client, ECHO, b"first of the new one", 0), 0);
    assert_eq!(call(&mut world, &mut client, ECHO, b"second", 0), 1);
}

#[test]
fn a_server_that_does_not_know_the_form_gets_none_of_it() {
    let mut world = World::new();
    let mut client = Caller::<ServerReply>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let mut hello = client.hello().unwrap();
    assert!(hello.features.contains(Features::COMPACT));
    hello.features.remove(Features::COMPACT);
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    assert!(!welcome.features.contains(Features::COMPACT), "what was not offered is not used");
    client.welcome(welcome, now).unwrap();
    for _ in 0..3 {
        assert_eq!(call(&mut world, &mut client, ECHO, b"of full form", 0), 0);
    }
}

#[test]
fn a_deadline_travels_in_a_compact_request() {
    let mut world = World::new();
    let mut client = world.client::<ServerReply>();
    call(&mut world, &mut client, ECHO, b"first", 0);
    let deadline = world.now() + Duration::from_millis(50);
    let context = CallContext { deadline: Some(deadline), ..CallContext::default() };
    client.submit(ECHO, b"with a deadline", context, world.now()).unwrap();
    assert_eq!(world.finish(&mut client).1.unwrap(), b"with a deadline");
    assert_eq!(client.counters().compact.get(), 1);
    let at_server = world.server.handler().last_deadline.unwrap();
    assert!(at_server >= deadline && at_server.since(deadline) < Duration::from_millis(1), "{at_server:?}");
}
