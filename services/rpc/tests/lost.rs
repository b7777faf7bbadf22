//! Over UC and UD messages are lost without notification.

mod support;

use std::time::Duration;

use farcall_faults::Faults;
use farcall_link::Nic;
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::Endpoint;
use support::*;

type UcRpc = OverUc<ServerReply>;
type Herd = OverUc<DatagramReply>;
type UdRpc = OverUd<DatagramReply>;

const CALLS: u64 = 300;

/// Opens a device that loses `share` of the messages that it sends.
fn losing(share: &str) -> Nic {
    let faults = Faults::new(format!("seed=5,drop={share}").parse().unwrap(), None);
    Nic::open(&faults.around_all(SoftNic::new())).unwrap()
}

fn client_on<P: Path>(world: &mut World, nic: Nic) -> Caller<P> {
    let mut client = Caller::new(nic, CallerConfig::default()).unwrap();
    world.connect(&mut client).unwrap();
    client
}

/// Makes calls of all sizes, several at a time. Each returns its own result, and ran once.
fn calls_end_well<P: Path>(world: &mut World, client: &mut Caller<P>) {
    for round in 0..CALLS / 6 {
        let sizes = [1, 50, 3_000, 7 * round as usize, 4_000, 10_000];
        for size in sizes {
            client.submit(ECHO, &pattern(size), CallContext::default(), world.now()).unwrap();
        }
        let mut ended = Vec::new();
        let mut patience = Patience::new();
        while ended.len() < sizes.len() {
            assert!(!patience.is_over(), "no call ends; client {:?}", client.counters());
            // Pauses between retries are long compared with an iteration.
            world.time.0.advance(Duration::from_micros(5));
            world.step(client);
            while let Some(done) = client.next_completion() {
                ended.push((done.call, done.result.map(<[u8]>::to_vec)));
            }
        }
        ended.sort_by_key(|(call, _)| *call);
        for (size, (_, result)) in sizes.into_iter().zip(ended) {
            assert!(result.unwrap() == pattern(size), "{size} bytes in round {round}");
        }
    }
    assert_eq!(world.server.handler().executed, CALLS, "each call once");
    assert_eq!(client.counters().connections_opened.get(), 1);
}

#[test]
fn resends_a_lost_request() {
    requests_are_lost::<UcRpc>();
    requests_are_lost::<Herd>();
    requests_are_lost::<UdRpc>();
}

fn requests_are_lost<P: Path>() {
    let mut world = World::new();
    let mut client = client_on::<P>(&mut world, losing("0.2"));
    calls_end_well(&mut world, &mut client);
    assert!(client.counters().resent.get() > 0, "nothing was sent again");
}

#[test]
fn requests_a_lost_response_without_reexecution() {
    responses_are_lost::<UcRpc>();
    responses_are_lost::<Herd>();
    responses_are_lost::<UdRpc>();
}

fn responses_are_lost<P: Path>() {
    let mut world = World::on(losing("0.2"), ResponderConfig::default());
    let mut client = client_on::<P>(&mut world, Nic::open(&SoftNic::new()).unwrap());
    calls_end_well(&mut world, &mut client);
    let counters = world.server.counters();
    assert!(counters.kicks.get() + counters.repeated.get() > 0, "nothing was asked for");
}

#[test]
fn executes_calls_once_despite_any_loss() {
    anything_is_lost::<UcRpc>();
    anything_is_lost::<Herd>();
    anything_is_lost::<UdRpc>();
}

fn anything_is_lost<P: Path>() {
    let mut world = World::on(losing("0.3"), ResponderConfig::default());
    let mut client = client_on::<P>(&mut world, losing("0.3"));
    calls_end_well(&mut world, &mut client);
}

/// Makes iterations of the client alone, for `time`.
fn wait<P: Path>(world: &World, client: &mut Caller<P>, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        client.progress(world.now());
        world.time.0.advance(Duration::from_micros(50));
    }
}

#[test]
fn a_request_that_was_sent_several_times_is_executed_once() {
    is_sent_several_times::<UcRpc>();
    is_sent_several_times::<Herd>();
    is_sent_several_times::<UdRpc>();
}

fn is_sent_several_times<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    let call = client.submit(ECHO, b"once", CallContext::default(), world.now()).unwrap();
    wait(&world, &mut client, Duration::from_millis(10));
    let resent = client.counters().resent.get();
    assert!((2..20).contains(&resent), "{resent} times in 10 ms");
    assert_eq!(world.finish(&mut client), (call, Ok(b"once".to_vec())));
    for _ in 0..100 {
        world.step(&mut client);
    }
    assert_eq!(world.call(&mut client, ECHO, b"next").unwrap(), b"next");
    assert_eq!(world.server.handler().executed, 2);
}

#[test]
fn resends_little_to_a_slow_server() {
    is_slow::<UcRpc>();
    is_slow::<Herd>();
    is_slow::<UdRpc>();
}

/// No message is lost; every answer takes long, and several calls wait.
fn is_slow<P: Path>() {
    const CALLS: u64 = 100;
    const WINDOW: u64 = 8;
    // One message per iteration.
    let mut world = World::with(ResponderConfig::default().burst(1));
    let mut client = world.client::<P>();
    let (mut submitted, mut ended) = (0, 0);
    let mut patience = Patience::new();
    while ended < CALLS {
        assert!(!patience.is_over(), "no call ends; client {:?}", client.counters());
        while submitted < CALLS.min(ended + WINDOW) {
            client.submit(ECHO, b"soon", CallContext::default(), world.now()).unwrap();
            submitted += 1;
        }
        wait(&world, &mut client, Duration::from_millis(10));
        world.server.progress(world.now());
        client.progress(world.now());
        while let Some(done) = client.next_completion() {
            assert_eq!(done.result, Ok(&b"soon"[..]));
            ended += 1;
        }
    }
    assert_eq!(world.server.handler().executed, CALLS);
    let resent = client.counters().resent.get();
    // One per repeated request, of which there are seven before an answer arrives.
    assert!(resent < 8 * CALLS, "{resent} were sent again for {CALLS} calls");
}

#[test]
fn resends_a_cancelled_call_as_cancelled() {
    is_given_up::<UcRpc>();
    is_given_up::<Herd>();
    is_given_up::<UdRpc>();
}

fn is_given_up<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    // From now on a request arrives in the iteration that posts it.
    world.call(&mut client, ECHO, b"known").unwrap();
    let deadline = Some(world.now() + Duration::from_millis(1));
    client.submit(ECHO, b"late", CallContext { deadline, trace_id: 0 }, world.now()).unwrap();
    wait(&world, &mut client, Duration::from_millis(2));
    let late = client.next_completion().unwrap().result.map(<[u8]>::to_vec);
    assert_eq!(late, Err(CallError::OutcomeUnknown(UnknownBecause::Deadline)));
    wait(&world, &mut client, Duration::from_millis(20));
    for _ in 0..100 {
        world.step(&mut client);
    }
    assert_eq!(world.call(&mut client, ECHO, b"next").unwrap(), b"next");
    assert_eq!(world.server.handler().executed, 2, "the first one and the next one");
}

#[test]
fn reconnects_to_a_server_that_is_silent_for_long() {
    is_silent_for_long::<UcRpc>();
    is_silent_for_long::<Herd>();
    is_silent_for_long::<UdRpc>();
}

fn is_silent_for_long<P: Path>() {
    let mut world = World::new();
    let mut client = world.client::<P>();
    let call = client.submit(ECHO, b"patient", CallContext::default(), world.now()).unwrap();
    let silence = CallerConfig::default().silence_max;
    wait(&world, &mut client, silence + Duration::from_secs(1));
    assert_eq!(client.broken(), Some(&Broken::Silent(silence)));
    world.connect(&mut client).unwrap();
    assert_eq!(world.finish(&mut client), (call, Ok(b"patient".to_vec())));
    assert_eq!(world.server.handler().executed, 1);
}

#[test]
fn ignores_a_duplicate_datagram_result() {
    // A client that requests a lost result receives all of its window again.
    let mut world = World::on(losing("0.2"), ResponderConfig::default());
    let mut client = client_on::<Herd>(&mut world, Nic::open(&SoftNic::new()).unwrap());
    calls_end_well(&mut world, &mut client);
    assert!(client.counters().repeated.get() > 0, "nothing came again");
}
