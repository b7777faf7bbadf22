//! Guarantees in case of failures; each is a sentence in docs/semantics/remote-calls.md.

mod support;

use std::time::{Duration, Instant};

use farcall_link::bootstrap::RefusalKind;
use farcall_rpc::*;
use farcall_verbs::Endpoint;
use support::*;

fn fetching(world: &mut World) -> Caller<FetchThenReply> {
    world.client()
}

fn status_of(result: Result<Vec<u8>, CallError>) -> wire::Status {
    match result {
        Err(CallError::Server { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reports_a_panic_as_an_error_and_keeps_serving() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let error = world.call(&mut client, PANIC, b"").unwrap_err();
    assert_eq!(error.executed(), Executed::Yes);
    assert!(error.to_string().contains("told to"), "{error}");
    assert_eq!(world.call(&mut client, ECHO, b"on").unwrap(), b"on");
    assert_eq!(world.server.counters().panics.get(), 1);
}

#[test]
fn a_handlers_refusal_arrives_with_code_and_text() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let refused = CallError::Application { code: 42, message: "no".into() };
    assert_eq!(world.call(&mut client, REFUSE, b""), Err(refused));
    assert_eq!(status_of(world.call(&mut client, 999, b"")), wire::Status::UNKNOWN_METHOD);
}

#[test]
fn requests_and_results_beyond_the_limits_are_clear_errors() {
    let config = ResponderConfig::default().request_bytes_max(10_000).result_bytes_max(20_000);
    let mut world = World::with(config);
    let mut client = fetching(&mut world);
    let too_large = CallError::RequestTooLarge { len_bytes: 10_001, max_bytes: 10_000 };
    assert_eq!(world.call(&mut client, ECHO, &pattern(10_001)), Err(too_large));
    assert_eq!(
        status_of(world.call(&mut client, MAKE, &20_001u32.to_le_bytes())),
        wire::Status::RESULT_TOO_LARGE
    );
    assert_eq!(world.call(&mut client, MAKE, &20_000u32.to_le_bytes()).unwrap(), pattern(20_000));

    let mut modest = world.client_with::<FetchThenReply>(CallerConfig::default().result_bytes_max(5_000));
    let error = world.call(&mut modest, MAKE, &6_000u32.to_le_bytes()).unwrap_err();
    assert_eq!(error, CallError::ResultTooLarge { len_bytes: 6_000, max_bytes: 5_000 });
    assert_eq!(world.call(&mut modest, MAKE, &5_000u32.to_le_bytes()).unwrap(), pattern(5_000));
}

#[test]
fn skips_a_call_whose_deadline_expires_before_sending() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    client.disconnect(Broken::Closed);
    let context = CallContext { deadline: Some(world.now() + Duration::from_micros(5)), trace_id: 0 };
    client.submit(ECHO, b"late", context, world.now()).unwrap();
    let (_, result) = world.finish(&mut client);
    assert_eq!(result, Err(CallError::DeadlineExceeded));
    world.connect(&mut client).unwrap();
    assert_eq!(world.call(&mut client, ECHO, b"on").unwrap(), b"on");
    assert_eq!(world.server.handler().executed, 1);
}

#[test]
fn reports_an_unknown_outcome_for_a_deadline_after_sending() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let context = CallContext { deadline: Some(world.now() + Duration::from_micros(5)), trace_id: 0 };
    // The server does nothing in the meantime.
    for _ in 0..16 {
        client.submit(ECHO, b"old", context, world.now()).unwrap();
    }
    client.progress(world.now());
    world.time.0.advance(Duration::from_micros(6));
    client.progress(world.now());
    for _ in 0..16 {
        let done = client.next_completion().unwrap();
        assert_eq!(done.result, Err(CallError::OutcomeUnknown(UnknownBecause::Deadline)));
    }
    // All slots still belong to the old calls: a new call waits for them, and gets its own result.
    assert!(matches!(
        client.submit(ECHO, b"new", CallContext::default(), world.now()),
        Err(CallError::WindowFull { .. })
    ));
    world.serve(16);
    let start = Instant::now();
    let result = loop {
        world.step(&mut client);
        match world.call(&mut client, ECHO, b"new") {
            Err(CallError::WindowFull { .. }) => assert!(start.elapsed() < LOST, "no slot is drained"),
            result => break result,
        }
    };
    assert_eq!(result.unwrap(), b"new");
    assert_eq!(world.server.handler().executed, 17);
}

#[test]
fn a_cancelled_call_is_drained_before_its_slot_is_used_again() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    for round in 0..40u8 {
        // Including long ones, whose results the server stores until it is notified to release them.
        let size = if round % 3 == 0 { 9_000u32 } else { 9 };
        let call = client.submit(MAKE, &size.to_le_bytes(), CallContext::default(), world.now()).unwrap();
        for _ in 0..round % 5 {
            world.step(&mut client);
        }
        client.cancel(call);
        assert_eq!(world.call(&mut client, ECHO, &[round]).unwrap(), [round]);
    }
    // Cancelled calls hold no memory of the server: the same number of long results again does not overload it.
    for _ in 0..20 {
        world.step(&mut client);
    }
    assert_eq!(world.call(&mut client, MAKE, &100_000u32.to_le_bytes()).unwrap(), pattern(100_000));
}

/// Breaks the connection after `steps` iterations with a full window, reconnects, and receives all results.
fn reconnect_after<P: Path>(steps: u32, method: u16, size: u32) {
    let mut world = World::new();
    let mut client = world.client::<P>();
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(client.submit(method, &size.to_le_bytes(), CallContext::default(), world.now()).unwrap());
    }
    for _ in 0..steps {
        world.step(&mut client);
    }
    client.disconnect(Broken::HungUp);
    let mut ended = Vec::new();
    while let Some(done) = client.next_completion() {
        ended.push((done.call, done.result.map(<[u8]>::to_vec)));
    }
    world.connect(&mut client).unwrap();
    while ended.len() < 10 {
        ended.push(world.finish(&mut client));
    }
    assert_eq!(client.counters().sessions_resumed.get(), 1);
    let expected = if method == MAKE { pattern(size as usize) } else { size.to_le_bytes().to_vec() };
    ended.sort_by_key(|(call, _)| *call);
    for (call, (ended, result)) in calls.into_iter().zip(ended) {
        assert_eq!(call, ended);
        assert!(result.unwrap() == expected);
    }
    assert_eq!(world.server.handler().executed, 10, "each call exactly once, after {steps} turns");
}

#[test]
fn calls_are_executed_at_most_once_across_a_reconnect() {
    for steps in 0..6 {
        reconnect_after::<FetchThenReply>(steps, ECHO, 1);
        reconnect_after::<Fetch>(steps, ECHO, 1);
        reconnect_after::<ServerReply>(steps, ECHO, 1);
        reconnect_after::<OverUc<ServerReply>>(steps, ECHO, 1);
        reconnect_after::<OverUc<DatagramReply>>(steps, ECHO, 1);
        reconnect_after::<OverUd<DatagramReply>>(steps, ECHO, 1);
        reconnect_after::<SendReply>(steps, ECHO, 1);
        reconnect_after::<BySend<ServerReply>>(steps, ECHO, 1);
        reconnect_after::<BySend<SendReply>>(steps, ECHO, 1);
        reconnect_after::<BySend<NotifyThenFetch>>(steps, ECHO, 1);
    }
    for steps in 0..12 {
        reconnect_after::<FetchThenReply>(steps, MAKE, 30_000);
        reconnect_after::<Fetch>(steps, MAKE, 30_000);
        reconnect_after::<ServerReply>(steps, MAKE, 30_000);
        reconnect_after::<OverUc<ServerReply>>(steps, MAKE, 30_000);
        reconnect_after::<OverUc<DatagramReply>>(steps, MAKE, 30_000);
        reconnect_after::<OverUd<DatagramReply>>(steps, MAKE, 30_000);
        reconnect_after::<SendReply>(steps, MAKE, 30_000);
        reconnect_after::<BySend<ServerReply>>(steps, MAKE, 30_000);
        reconnect_after::<BySend<SendReply>>(steps, MAKE, 30_000);
        reconnect_after::<BySend<NotifyThenFetch>>(steps, MAKE, 30_000);
    }
}

#[test]
fn returns_the_stored_response_after_a_reconnect() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    client.submit(ECHO, b"once", CallContext::default(), world.now()).unwrap();
    // The server executes; the client does not poll.
    world.serve(1);
    client.disconnect(Broken::HungUp);
    world.connect(&mut client).unwrap();
    assert_eq!(world.finish(&mut client).1.unwrap(), b"once");
    assert_eq!((world.server.handler().executed, client.counters().resent.get()), (1, 0));
}

#[test]
fn slots_that_an_earlier_connection_used_are_free_in_the_next() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    // Too long to be sent inline: each slot is free when a completion shows that the NIC has read its request.
    let long = [7; 2_000];
    for _ in 0..200 {
        assert_eq!(world.call(&mut client, ECHO, &long).unwrap(), long);
    }
    client.disconnect(Broken::HungUp);
    world.connect(&mut client).unwrap();
    assert_eq!(client.counters().sessions_resumed.get(), 1);
    for _ in 0..40 {
        assert_eq!(world.call(&mut client, ECHO, &long).unwrap(), long);
    }
}

#[test]
fn reports_sent_calls_unknown_and_sends_others_after_a_restart() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let sent = client.submit(ECHO, b"sent", CallContext::default(), world.now()).unwrap();
    client.disconnect(Broken::HungUp);
    let unsent = client.submit(ECHO, b"unsent", CallContext::default(), world.now()).unwrap();
    world.restart();
    world.connect(&mut client).unwrap();
    let unknown = CallError::OutcomeUnknown(UnknownBecause::ServerRestarted);
    assert_eq!(world.finish(&mut client), (sent, Err(unknown)));
    assert_eq!(world.finish(&mut client), (unsent, Ok(b"unsent".to_vec())));
    assert_eq!(world.server.handler().executed, 1);
}

#[test]
fn retains_a_session_for_a_while_and_then_discards_it() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let hello = client.hello().unwrap();
    let now = world.now();
    let (id, welcome) = world.server.accept(&hello, now).unwrap();
    client.welcome(welcome, now).unwrap();
    world.server.hang_up(id, true, now);
    assert_eq!(world.server.detached_sessions(), 1);
    world.time.0.advance(Duration::from_secs(11));
    let now = world.now();
    world.server.progress(now);
    assert_eq!(world.server.detached_sessions(), 0);
    client.submit(ECHO, b"into the void", CallContext::default(), now).unwrap();
    client.disconnect(Broken::HungUp);
    world.connect(&mut client).unwrap();
    assert_eq!(world.finish(&mut client).1, Err(CallError::OutcomeUnknown(UnknownBecause::ServerRestarted)));
}

/// The server retains the session: it may not have noticed the loss.
#[test]
fn begins_a_new_session_after_abandoning_its_calls() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    for _ in 0..20 {
        world.call(&mut client, ECHO, b"before").unwrap();
    }
    let sent = client.submit(ECHO, b"sent", CallContext::default(), world.now()).unwrap();
    world.serve(21);
    client.disconnect(Broken::HungUp);
    let unsent = client.submit(ECHO, b"unsent", CallContext::default(), world.now()).unwrap();
    client.fail_all(&Broken::HungUp);
    let unknown = CallError::OutcomeUnknown(UnknownBecause::Disconnected(Broken::HungUp));
    assert_eq!(world.finish(&mut client), (sent, Err(unknown)));
    assert_eq!(world.finish(&mut client), (unsent, Err(CallError::NotSent(Broken::HungUp))));
    world.connect(&mut client).unwrap();
    assert_eq!(client.counters().sessions_resumed.get(), 0);
    for _ in 0..20 {
        assert_eq!(world.call(&mut client, ECHO, b"after").unwrap(), b"after");
    }
    assert_eq!(world.server.handler().executed, 41);
    // The new session can be resumed.
    client.disconnect(Broken::HungUp);
    world.connect(&mut client).unwrap();
    assert_eq!(client.counters().sessions_resumed.get(), 1);
}

#[test]
fn a_wrong_secret_opens_no_session() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    let mut hello = client.hello().unwrap();
    hello.resume.as_mut().unwrap().secret.0[3] ^= 1;
    let now = world.now();
    assert_eq!(world.server.accept(&hello, now).unwrap_err().kind, RefusalKind::WrongSecret);
    assert_eq!(world.server.connections(), 1, "the owner's connection lives");
}

#[test]
fn refuses_each_invalid_hello_without_effect() {
    let mut world = World::with(ResponderConfig::default().connections_max(1));
    let mut client = Caller::<FetchThenReply>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let hello = client.hello().unwrap();
    let now = world.now();
    let mut refuse = |change: fn(&mut farcall_link::bootstrap::Hello)| {
        let mut hello = hello.clone();
        change(&mut hello);
        world.server.accept(&hello, now).unwrap_err().kind
    };
    assert_eq!(refuse(|h| h.provider = "ibv".into()), RefusalKind::Provider);
    assert_eq!(refuse(|h| h.thread = 1), RefusalKind::NoSuchThread);
    assert_eq!(refuse(|h| h.plan.transport = farcall_link::Transport::Ud), RefusalKind::Plan);
    assert_eq!(refuse(|h| h.plan.geometry.window = 3), RefusalKind::OutOfRange);
    assert_eq!(refuse(|h| h.plan.geometry.request_slot_bytes = u32::MAX), RefusalKind::OutOfRange);
    assert_eq!(refuse(|h| h.grants.messages.len_bytes = 64), RefusalKind::OutOfRange);
    assert_eq!(refuse(|h| h.features = Default::default()), RefusalKind::Malformed);
    assert_eq!(refuse(|h| h.qp.qp_num = u32::MAX), RefusalKind::Resources);
    assert_eq!((world.server.connections(), world.server.detached_sessions()), (0, 0));
    let _open = fetching(&mut world);
    let mut second = Caller::<ServerReply>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    assert_eq!(world.connect(&mut second).unwrap_err().kind, RefusalKind::TooManyConnections);
}

#[test]
fn finishes_received_calls_and_refuses_later_ones_in_a_drain() {
    let mut world = World::new();
    let mut client = fetching(&mut world);
    // From now on a request arrives in the iteration that posts it.
    world.call(&mut client, ECHO, b"known").unwrap();
    client.submit(ECHO, b"came before", CallContext::default(), world.now()).unwrap();
    client.progress(world.now());
    world.server.drain();
    assert_eq!(world.finish(&mut client).1.unwrap(), b"came before");
    // An iteration that finds nothing: all received messages are finished.
    world.step(&mut client);
    let error = world.call(&mut client, ECHO, b"comes after").unwrap_err();
    assert_eq!(error.executed(), Executed::No);
    assert_eq!(status_of(Err(error)), wire::Status::GOING_AWAY);
    assert!(!world.server.is_drained());
    world.time.0.advance(Duration::from_secs(1));
    let now = world.now();
    world.server.progress(now);
    assert!(world.server.is_drained() && world.server.connections() == 0);
    let mut other = Caller::<ServerReply>::new(world.nic.clone(), CallerConfig::default()).unwrap();
    assert_eq!(world.connect(&mut other).unwrap_err().kind, RefusalKind::GoingAway);
}

#[test]
fn reports_overload_without_execution_for_too_many_results() {
    let config = ResponderConfig::default().retained_bytes_max(10_000);
    let mut world = World::with(config);
    let mut client = fetching(&mut world);
    for _ in 0..3 {
        client.submit(MAKE, &8_000u32.to_le_bytes(), CallContext::default(), world.now()).unwrap();
    }
    let outcomes: Vec<_> = (0..3).map(|_| world.finish(&mut client).1).collect();
    let overloaded = outcomes
        .iter()
        .filter(|o| matches!(o, Err(CallError::Server { status, .. }) if *status == wire::Status::OVERLOADED))
        .count();
    assert_eq!(overloaded, 1);
    assert!(outcomes.iter().flatten().all(|result| *result == pattern(8_000)));
    assert_eq!(world.server.handler().executed, 2);
}

#[test]
fn bounds_memory_of_all_clients_and_rejects_calls_beyond() {
    let config = ResponderConfig::default().buffers_bytes_max(20_000);
    let mut world = World::with(config);
    let (mut first, mut second) = (fetching(&mut world), fetching(&mut world));
    let overloaded = |outcome: &Result<Vec<u8>, CallError>| matches!(outcome, Err(CallError::Server { status, .. }) if *status == wire::Status::OVERLOADED);
    // A request in parts that never fits is refused as a whole, and the connection remains open.
    assert!(overloaded(&world.call(&mut first, ECHO, &pattern(30_000))));
    assert_eq!(world.call(&mut first, ECHO, &pattern(18_000)).unwrap(), pattern(18_000));
    assert_eq!(world.server.handler().executed, 1);
    // Results that one client leaves at the server count for the other client.
    for _ in 0..3 {
        first.submit(MAKE, &8_000u32.to_le_bytes(), CallContext::default(), world.now()).unwrap();
    }
    world.serve(4);
    assert!(overloaded(&world.call(&mut second, ECHO, b"")));
    assert_eq!(world.server.handler().executed, 4);
    for _ in 0..3 {
        assert_eq!(world.finish(&mut first).1.unwrap(), pattern(8_000));
    }
    assert_eq!(world.call(&mut second, ECHO, b"now").unwrap(), b"now");
}

#[test]
fn bounds_slots_of_all_sessions_and_evicts_parked_ones() {
    let one_bytes = {
        let geometry = CallerConfig::default().plan.geometry;
        geometry.mailbox_bytes() + geometry.responses_bytes()
    };
    let mut world = World::with(ResponderConfig::default().slots_bytes_max(2 * one_bytes));
    let mut first: Caller<Fetch> = Caller::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let id = world.connect(&mut first).unwrap();
    let mut second: Caller<Fetch> = world.client();
    let mut third: Caller<Fetch> = Caller::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let refused = world.connect(&mut third).unwrap_err();
    assert!(refused.reason.contains("slots"), "{refused}");
    let now = world.now();
    world.server.hang_up(id, true, now);
    while world.server.detached_sessions() == 0 {
        world.step(&mut second);
    }
    world.connect(&mut third).unwrap();
    assert_eq!(world.server.detached_sessions(), 0);
    assert_eq!(world.call(&mut third, ECHO, b"in").unwrap(), b"in");
}
