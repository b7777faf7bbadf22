//! Calls of all sizes, by every preset.

mod support;

use std::collections::HashSet;

use farcall_link::{Geometry, Plan};
use farcall_rpc::*;
use farcall_verbs::Endpoint;
use support::*;

const SIZES: [usize; 16] =
    [0, 1, 7, 8, 9, 64, 255, 256, 1_000, 4_095, 4_096, 4_168, 4_169, 20_000, 300_000, 3 << 20];

fn echo_all_sizes<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    for size in SIZES {
        let payload = pattern(size);
        assert!(world.call(&mut client, ECHO, &payload).unwrap() == payload, "{size} bytes");
    }
    assert_eq!(world.server.handler().executed, SIZES.len() as u64);
}

/// An acknowledged call was executed once, and its result is complete, for all sizes.
#[test]
fn echo_of_all_sizes_by_fetching() {
    echo_all_sizes::<FetchThenReply>();
    echo_all_sizes::<Fetch>();
}

#[test]
fn echo_of_all_sizes_by_server_reply() {
    echo_all_sizes::<ServerReply>();
    echo_all_sizes::<OverUc<ServerReply>>();
}

#[test]
fn echo_of_all_sizes_by_datagrams() {
    echo_all_sizes::<OverUc<DatagramReply>>();
    echo_all_sizes::<OverUd<DatagramReply>>();
}

#[test]
fn echo_of_all_sizes_by_sends() {
    echo_all_sizes::<SendReply>();
    echo_all_sizes::<BySend<ServerReply>>();
    echo_all_sizes::<BySend<SendReply>>();
}

#[test]
fn echo_of_all_sizes_by_notices() {
    echo_all_sizes::<BySend<NotifyThenFetch>>();
}

#[test]
fn reads_long_results_in_two_reads() {
    second_reads::<FetchThenReply>();
    second_reads::<Fetch>();
}

fn second_reads<P: Path>() {
    let mut world = World::new();
    let config = CallerConfig::default().fetch_bytes(128).tune_while_running(false);
    let mut client = world.client_with::<P>(config);
    for (size, second_reads) in [(96, 0), (97, 1), (4_000, 1)] {
        let before = client.counters().second_reads.get();
        assert_eq!(world.call(&mut client, MAKE, &u32::to_le_bytes(size)).unwrap(), pattern(size as usize));
        assert_eq!(client.counters().second_reads.get() - before, second_reads, "{size}");
    }
}

fn windows<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    let (mut sent, mut got) = (std::collections::HashMap::new(), 0);
    for i in 0..2_000u64 {
        loop {
            let payload = pattern((i % 50) as usize * if i % 97 == 0 { 400 } else { 1 });
            match client.submit(ECHO, &payload, CallContext::default(), world.now()) {
                Ok(id) => {
                    sent.insert(id, payload);
                    break;
                }
                Err(CallError::WindowFull { window }) => assert_eq!(window, 16),
                Err(other) => panic!("{other}"),
            }
            world.step(&mut client);
            while let Some(done) = client.next_completion() {
                assert_eq!(done.result.unwrap(), sent.remove(&done.call).unwrap());
                got += 1;
            }
        }
    }
    while got < 2_000 {
        let (id, result) = world.finish(&mut client);
        assert_eq!(result.unwrap(), sent.remove(&id).unwrap());
        got += 1;
    }
    assert!(sent.is_empty());
    assert_eq!(world.server.handler().executed, 2_000);
}

#[test]
fn many_outstanding_calls_by_fetching() {
    windows::<FetchThenReply>();
    windows::<Fetch>();
}

#[test]
fn many_outstanding_calls_by_server_reply() {
    windows::<ServerReply>();
    windows::<OverUc<ServerReply>>();
    windows::<OverUc<DatagramReply>>();
    windows::<OverUd<DatagramReply>>();
}

#[test]
fn many_outstanding_calls_by_sends() {
    windows::<SendReply>();
    windows::<BySend<ServerReply>>();
    windows::<BySend<SendReply>>();
}

#[test]
fn many_outstanding_calls_by_notices() {
    windows::<BySend<NotifyThenFetch>>();
}

/// A notice contains the length of its result, so one READ fetches all of it, and no READ finds nothing.
#[test]
fn reads_an_announced_result_in_one_read() {
    let mut world = World::new();
    let mut client = world.client_with::<BySend<NotifyThenFetch>>(CallerConfig::default().fetch_bytes(128));
    for (calls, size) in (1..).zip([0, 96, 97, 4_000u32]) {
        assert_eq!(world.call(&mut client, MAKE, &size.to_le_bytes()).unwrap(), pattern(size as usize));
        let counters = client.counters();
        let came = [&counters.notices, &counters.reads, &counters.fetched].map(|count| count.get());
        assert_eq!(came, [calls; 3], "{size} bytes");
        let server = world.server.counters();
        assert_eq!((server.notices.get(), server.fetched.get()), (calls, calls));
    }
}

#[test]
fn small_slots_carry_large_calls() {
    fn check<P: Path>() {
        let mut world = World::new();
        let geometry = Geometry { window: 2, request_slot_bytes: 128, response_slot_bytes: 128 };
        let plan = Plan { geometry, ..Plan::default() };
        let mut client = world.client_with::<P>(CallerConfig::default().plan(plan));
        let payload = pattern(10_000);
        assert!(world.call(&mut client, ECHO, &payload).unwrap() == payload);
    }
    check::<FetchThenReply>();
    check::<BySend<SendReply>>();
    check::<BySend<NotifyThenFetch>>();
    check::<OverUc<ServerReply>>();
    check::<OverUc<DatagramReply>>();
    check::<OverUd<DatagramReply>>();
}

/// One stalled client does not affect the others.
#[test]
fn many_connections_and_one_that_never_takes_its_results() {
    one_is_stalled::<ServerReply>();
    one_is_stalled::<OverUc<ServerReply>>();
    one_is_stalled::<OverUc<DatagramReply>>();
    one_is_stalled::<OverUd<DatagramReply>>();
    one_is_stalled::<BySend<SendReply>>();
    one_is_stalled::<BySend<NotifyThenFetch>>();
}

fn one_is_stalled<P: Path>() {
    let mut world = World::new();
    let mut clients: Vec<Caller<FetchThenReply>> = (0..40).map(|_| world.client()).collect();
    let mut stalled = world.client::<P>();
    for _ in 0..16 {
        stalled.submit(ECHO, b"never taken", CallContext::default(), world.now()).unwrap();
    }
    world.serve(16);
    for round in 0..5u8 {
        for client in &mut clients {
            assert_eq!(world.call(client, ECHO, &[round]).unwrap(), [round]);
        }
    }
    assert_eq!(world.server.handler().executed, 16 + 200);
}

#[test]
fn spreads_mailboxes_over_cache_lines_and_polls_them_in_parts() {
    let mut world = World::new();
    let clients: Vec<Caller<Fetch>> = (0..64).map(|_| world.client()).collect();
    let line = |client: &Caller<Fetch>| client.last_welcome().unwrap().grants.messages.addr % 4_096;
    let lines: HashSet<u64> = clients.iter().map(line).collect();
    assert_eq!((lines.len(), world.server.poll_weight()), (64, 2));
}

#[test]
fn carries_checksums_if_requested() {
    let mut world = World::new();
    for (client_asks, server_asks) in [(true, false), (false, true)] {
        let mut world =
            if server_asks { World::with(ResponderConfig::default().checksum(true)) } else { World::new() };
        let config = CallerConfig::default().checksum(client_asks);
        let mut fetching = world.client_with::<FetchThenReply>(config.clone());
        let mut replied = world.client_with::<ServerReply>(config.clone());
        let mut sent = world.client_with::<BySend<SendReply>>(config.clone());
        let mut told = world.client_with::<BySend<NotifyThenFetch>>(config.clone());
        let mut datagrams = world.client_with::<OverUc<DatagramReply>>(config.clone());
        let mut only_datagrams = world.client_with::<OverUd<DatagramReply>>(config.clone());
        let mut always_fetching = world.client_with::<Fetch>(config);
        for size in [0, 100, 5_000] {
            assert_eq!(world.call(&mut fetching, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut sent, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut told, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut datagrams, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut only_datagrams, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut replied, ECHO, &pattern(size)).unwrap(), pattern(size));
            assert_eq!(world.call(&mut always_fetching, ECHO, &pattern(size)).unwrap(), pattern(size));
        }
    }
    let mut plain = world.client::<ServerReply>();
    assert_eq!(world.call(&mut plain, ECHO, b"x").unwrap(), b"x");
}

#[test]
fn a_handler_learns_which_connection_ended() {
    let mut world = World::new();
    let mut first: Caller<Fetch> = Caller::new(world.nic.clone(), CallerConfig::default()).unwrap();
    let id = world.connect(&mut first).unwrap();
    let mut second: Caller<Fetch> = world.client();
    world.call(&mut first, ECHO, b"first").unwrap();
    let first_connection = world.server.handler().last_connection;
    world.call(&mut second, ECHO, b"second").unwrap();
    assert_ne!(world.server.handler().last_connection, first_connection);
    let now = world.now();
    world.server.hang_up(id, true, now);
    assert_eq!(world.server.handler().closed, [first_connection]);
    // A client that reconnects does so over another connection.
    world.connect(&mut first).unwrap();
    world.call(&mut first, ECHO, b"again").unwrap();
    assert_ne!(world.server.handler().last_connection, first_connection);
}
