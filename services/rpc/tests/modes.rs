//! The mode flag, sleeping and waking.

mod support;

use std::time::{Duration, Instant};

use farcall_rpc::*;
use farcall_verbs::{Endpoint, Progress};
use support::*;

#[test]
fn switches_to_server_reply_for_slow_methods_and_back() {
    let mut world = World::new();
    let config = CallerConfig::default().fetch_retries_max(5).tune_while_running(false);
    let mut client = world.client_with::<FetchThenReply>(config);
    world.call(&mut client, ECHO, b"known").unwrap();
    world.server.handler().slow = Duration::from_micros(100);
    // A slow server is not polled while it works: the client makes iterations.
    let slow_call = |world: &mut World, client: &mut Caller<FetchThenReply>, method| {
        client.submit(method, b"x", CallContext::default(), world.now()).unwrap();
        for _ in 0..10 {
            world.time.0.advance(Duration::from_micros(100));
            client.progress(world.now());
        }
        assert_eq!(world.finish(client).1.unwrap(), b"x");
    };
    slow_call(&mut world, &mut client, SLOW);
    assert_eq!(client.counters().switches_to_reply.get(), 0, "one long call is no reason");
    slow_call(&mut world, &mut client, SLOW);
    assert_eq!(client.counters().switches_to_reply.get(), 1);
    let replied = client.counters().replied.get();
    assert_eq!(world.call(&mut client, SLOW, b"y").unwrap(), b"y");
    assert_eq!(client.counters().replied.get(), replied + 1);
    // Another method of the same client still fetches.
    assert_eq!(world.call(&mut client, ECHO, b"z").unwrap(), b"z");
    assert_eq!(client.counters().replied.get(), replied + 1);
    // The reported time becomes short.
    world.server.handler().slow = Duration::from_nanos(200);
    for _ in 0..2 {
        assert_eq!(client.counters().switches_to_fetch.get(), 0);
        assert_eq!(world.call(&mut client, SLOW, b"q").unwrap(), b"q");
    }
    assert_eq!(client.counters().switches_to_fetch.get(), 1);
    let fetched = client.counters().fetched.get();
    assert_eq!(world.call(&mut client, SLOW, b"q").unwrap(), b"q");
    assert_eq!(client.counters().fetched.get(), fetched + 1);
}

/// Puts the server to sleep in the same way as the driver.
fn put_to_sleep(world: &mut World) {
    let now = world.now();
    // Completions of its own sends may still arrive.
    let sleeps = (0..100).any(|_| {
        world.server.arm().unwrap();
        matches!(world.server.progress(now), Progress::Idle { .. })
    });
    assert!(sleeps);
}

fn server_event(world: &World) -> bool {
    let mut set = farcall_verbs::WaitSet::default();
    world.server.wait_set(&mut set);
    readable(set.fds()[0])
}

fn readable(fd: i32) -> bool {
    is_readable_within(LOST, fd)
}

fn is_readable_within(time: Duration, fd: i32) -> bool {
    // SAFETY: the descriptor belongs to an endpoint's channel, and the endpoint outlives this call.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let timeout = time.try_into().unwrap();
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_fetching_client_sees_that_the_server_sleeps_and_wakes_it() {
    kicks_a_sleeper::<FetchThenReply>();
    kicks_a_sleeper::<Fetch>();
}

fn kicks_a_sleeper<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    // From now on a request arrives in the iteration that posts it.
    world.call(&mut client, ECHO, b"known").unwrap();
    let before = client.counters().kicks.get();
    for round in 0..40u8 {
        put_to_sleep(&mut world);
        client.submit(ECHO, &[round], CallContext::default(), world.now()).unwrap();
        client.progress(world.now());
        client.progress(world.now());
        assert_eq!(client.counters().kicks.get() - before, u64::from(round) + 1, "one wake-up a call");
        assert!(server_event(&world));
        assert_eq!(world.finish(&mut client).1.unwrap(), [round]);
    }
}

#[test]
fn wakes_a_silent_server_from_a_client_that_does_not_fetch() {
    wakes_after_a_while::<ServerReply>();
    wakes_after_a_while::<OverUc<ServerReply>>();
    wakes_after_a_while::<OverUc<DatagramReply>>();
}

fn wakes_after_a_while<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    // The first call may take longer than `kick_after`, because the two queue pairs are not connected yet.
    world.call(&mut client, ECHO, b"known").unwrap();
    let before = client.counters().kicks.get();
    put_to_sleep(&mut world);
    client.submit(ECHO, b"x", CallContext::default(), world.now()).unwrap();
    client.progress(world.now());
    assert_eq!(client.counters().kicks.get(), before);
    world.time.0.advance(CallerConfig::default().kick_after);
    client.progress(world.now());
    assert_eq!(client.counters().kicks.get(), before + 1);
    assert!(server_event(&world));
    assert_eq!(world.finish(&mut client).1.unwrap(), b"x");
}

/// A client that goes to sleep requests its response, which wakes the server; its timer does not wake the server
/// again.
#[test]
fn wakes_a_sleeping_server_once_for_each_call() {
    let mut world = World::new();
    let mut client = world.client::<ServerReply>();
    world.call(&mut client, ECHO, b"known").unwrap();
    let before = client.counters().kicks.get();
    for round in 0..40u8 {
        put_to_sleep(&mut world);
        client.submit(ECHO, &[round], CallContext::default(), world.now()).unwrap();
        client.progress(world.now());
        client.arm().unwrap();
        // The server does not run for a long time.
        for _ in 0..20 {
            world.time.0.advance(CallerConfig::default().kick_after);
            client.progress(world.now());
        }
        assert_eq!(client.counters().kicks.get() - before, u64::from(round) + 1, "one wake-up a call");
        assert!(server_event(&world));
        assert_eq!(world.finish(&mut client).1.unwrap(), [round]);
    }
}

#[test]
fn a_request_by_send_wakes_the_server_and_no_kick_is_sent() {
    wakes_by_itself::<BySend<ServerReply>>(2);
    wakes_by_itself::<BySend<SendReply>>(2);
    wakes_by_itself::<OverUd<DatagramReply>>(2);
    wakes_by_itself::<BySend<NotifyThenFetch>>(3);
}

fn wakes_by_itself<P: Path>(verbs_per_call: u64) {
    let mut world = World::new();
    let mut client = world.client::<P>();
    world.call(&mut client, ECHO, b"known").unwrap();
    for round in 0..40u8 {
        put_to_sleep(&mut world);
        client.submit(ECHO, &[round], CallContext::default(), world.now()).unwrap();
        world.time.0.advance(CallerConfig::default().kick_after);
        client.progress(world.now());
        assert!(server_event(&world));
        assert_eq!(world.finish(&mut client).1.unwrap(), [round]);
    }
    let counters = client.counters();
    // A datagram may have been sent again before the server ran.
    let verbs = counters.verbs() - counters.resent.get();
    assert_eq!((counters.kicks.get(), verbs), (0, 41 * verbs_per_call));
}

fn a_sleeping_client_is_woken<P: Path>(executed_first: bool) {
    let mut world = World::new();
    let mut client = world.client::<P>();
    world.call(&mut client, ECHO, b"known").unwrap();
    for round in 0..40u8 {
        for i in 0..3 {
            client.submit(ECHO, &[round, i], CallContext::default(), world.now()).unwrap();
        }
        if executed_first {
            let now = world.now();
            world.server.progress(now);
        }
        // The client sleeps without having polled.
        client.arm().unwrap();
        let now = world.now();
        let asleep = matches!(client.progress(now), Progress::Idle { .. });
        assert!(asleep || executed_first);
        let mut set = farcall_verbs::WaitSet::default();
        client.wait_set(&mut set);
        let start = Instant::now();
        // Events that the device's service thread handles for the server in the meantime are found by a later
        // iteration of the server.
        while asleep && !is_readable_within(Duration::ZERO, set.fds()[0]) {
            assert!(start.elapsed() < LOST, "not woken in round {round}");
            world.server.progress(now);
        }
        for i in 0..3 {
            assert_eq!(world.finish(&mut client).1.unwrap(), [round, i]);
        }
    }
}

#[test]
fn a_client_that_goes_to_sleep_is_woken_by_its_results() {
    a_sleeping_client_is_woken::<FetchThenReply>(false);
    a_sleeping_client_is_woken::<FetchThenReply>(true);
    a_sleeping_client_is_woken::<Fetch>(false);
    a_sleeping_client_is_woken::<Fetch>(true);
    a_sleeping_client_is_woken::<ServerReply>(false);
    a_sleeping_client_is_woken::<OverUc<ServerReply>>(false);
    a_sleeping_client_is_woken::<ServerReply>(true);
    a_sleeping_client_is_woken::<OverUc<ServerReply>>(true);
    a_sleeping_client_is_woken::<OverUc<DatagramReply>>(false);
    a_sleeping_client_is_woken::<OverUd<DatagramReply>>(false);
    a_sleeping_client_is_woken::<OverUc<DatagramReply>>(true);
    a_sleeping_client_is_woken::<OverUd<DatagramReply>>(true);
    a_sleeping_client_is_woken::<SendReply>(false);
    a_sleeping_client_is_woken::<SendReply>(true);
    a_sleeping_client_is_woken::<BySend<ServerReply>>(false);
    a_sleeping_client_is_woken::<BySend<ServerReply>>(true);
    a_sleeping_client_is_woken::<BySend<SendReply>>(false);
    a_sleeping_client_is_woken::<BySend<SendReply>>(true);
    a_sleeping_client_is_woken::<BySend<NotifyThenFetch>>(false);
    a_sleeping_client_is_woken::<BySend<NotifyThenFetch>>(true);
}

#[test]
fn frees_a_pushed_slot_without_further_pushes() {
    let mut world = World::new();
    let mut client = world.client::<FetchThenReply>();
    // Too long to be sent inline: the push reads the slot until its completion.
    let long = pattern(1_000);
    client.submit(ECHO, &long, CallContext::default(), world.now()).unwrap();
    client.arm().unwrap();
    assert_eq!(world.finish(&mut client).1.unwrap(), long);
    // Twice the window, fetched: the server posts no more requests.
    for i in 0..64_u8 {
        assert_eq!(world.call(&mut client, ECHO, &[i]).unwrap(), [i]);
    }
}

#[test]
fn fetch_never_turns_to_server_reply_and_pauses_between_fetches() {
    let mut world = World::new();
    let config = CallerConfig::default().fetch_retries_max(5).tune_while_running(false);
    let mut client = world.client_with::<Fetch>(config);
    world.call(&mut client, ECHO, b"known").unwrap();
    for calls in 2..=6 {
        client.submit(SLOW, b"x", CallContext::default(), world.now()).unwrap();
        let reads = client.counters().reads.get();
        // A server that takes 100 ms.
        for _ in 0..100_000 {
            world.time.0.advance(Duration::from_micros(1));
            client.progress(world.now());
        }
        let reads = client.counters().reads.get() - reads;
        assert!((10..3_000).contains(&reads), "{reads} READs in 100 ms");
        assert_eq!(world.finish(&mut client).1.unwrap(), b"x");
        let counters = client.counters();
        let written = counters.replied.get() + counters.notified.get();
        assert_eq!((counters.fetched.get(), written, counters.switches_to_reply.get()), (calls, 0, 0));
    }
}

#[test]
fn fetches_ever_more_rarely_after_requesting_a_push() {
    let mut world = World::new();
    let mut client =
        world.client_with::<Fetch>(CallerConfig::default().kick_after(Duration::from_secs(3_600)));
    world.call(&mut client, ECHO, b"known").unwrap();
    client.submit(ECHO, b"x", CallContext::default(), world.now()).unwrap();
    client.arm().unwrap();
    let reads_in_a_second = |client: &mut Caller<Fetch>| {
        let (before, end) = (client.counters().reads.get(), world.now() + Duration::from_secs(1));
        while world.now() < end {
            let next = client.progress(world.now());
            // The next iteration of a sleeping client is when its timer expires, or when a READ has completed.
            let Progress::Idle { until: Some(until) } = next else { continue };
            world
                .time
                .0
                .advance(until.since(world.now()).clamp(Duration::from_micros(1), Duration::from_millis(1)));
        }
        client.counters().reads.get() - before
    };
    reads_in_a_second(&mut client);
    let reads = reads_in_a_second(&mut client);
    assert!(reads < 20, "{reads} READs in a second");
    assert_eq!(world.finish(&mut client).1.unwrap(), b"x");
}
