//! Several calls in one message (RF-RPC, section 4).

mod support;

use std::time::{Duration, Instant};

use farcall_faults::Faults;
use farcall_link::{BatchConfig, BatchSizing, Batching, Nic, Plan};
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, Progress};
use support::{ECHO, LOST, MAKE, PANIC, Patience, REFUSE, World, pattern};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Outcome of a call.
type Outcome = (CallId, Result<Vec<u8>, CallError>);

fn config(batch: BatchConfig) -> CallerConfig {
    CallerConfig::default().plan(Plan { batching: Batching::Calls(batch), ..Plan::default() })
}

fn client<P: Path>(world: &mut World, batch: BatchConfig) -> BatchCaller<P> {
    client_on(world, batch, Nic::open(&SoftNic::new()).unwrap())
}

fn client_on<P: Path>(world: &mut World, batch: BatchConfig, nic: Nic) -> BatchCaller<P> {
    let mut client = BatchCaller::new(nic, config(batch)).unwrap();
    world.connect(&mut client).unwrap();
    // From now on a request arrives in the iteration that posts it.
    let call = submit(world, &mut client, ECHO, b"known");
    client.flush(world.now());
    assert_eq!(finish(world, &mut client, 1), [(call, Ok(b"known".to_vec()))]);
    client
}

fn submit<P: Path>(world: &World, client: &mut BatchCaller<P>, method: u16, payload: &[u8]) -> CallId {
    client.submit(method, payload, CallContext::default(), world.now()).unwrap()
}

/// Makes iterations until `count` calls have completed.
fn finish<P: Path>(world: &mut World, client: &mut BatchCaller<P>, count: usize) -> Vec<Outcome> {
    let (mut ended, mut patience) = (Vec::new(), Patience::new());
    while ended.len() < count {
        assert!(!patience.is_over(), "no call ends; client {:?}", client.counters());
        turn(world, client);
        while let Some(done) = client.next_completion() {
            ended.push((done.call, done.result.map(<[u8]>::to_vec)));
        }
    }
    assert!(!client.has_completion());
    ended
}

fn turn<P: Path>(world: &mut World, client: &mut BatchCaller<P>) {
    world.time.0.advance(Duration::from_nanos(100));
    let now = world.now();
    let server = world.server.progress(now);
    if let Progress::Idle { .. } = server.merge(client.progress(now)) {
        // The device's service thread may need the processor; virtual time does not wait for it.
        std::thread::yield_now();
    }
}

/// Returns the numbers of messages and batches sent since `before`.
fn sent<P: Path>(client: &BatchCaller<P>, before: (u64, u64)) -> (u64, u64) {
    let counters = client.counters();
    (counters.messages.get() - before.0, counters.batches.get() - before.1)
}

fn each_has_its_own_result<P: Path>() {
    let mut world = World::new();
    let mut client = client::<P>(&mut world, BatchConfig::fixed(6));
    let before = sent(&client, (0, 0));
    let calls = [(ECHO, &b"one"[..]), (REFUSE, b""), (PANIC, b""), (99, b"x"), (ECHO, b""), (ECHO, b"six")];
    let ids = calls.map(|(method, payload)| submit(&world, &mut client, method, payload));
    assert_eq!(client.pending(), 6);
    let ended = finish(&mut world, &mut client, 6);
    assert_eq!(sent(&client, before), (1, 1));
    assert_eq!(world.server.counters().batches.get(), before.1 + 1);
    assert_eq!(ended.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    let mut results = ended.into_iter().map(|(_, result)| result);
    let mut next = || results.next().unwrap();
    assert_eq!(next().unwrap(), b"one");
    assert_eq!(next(), Err(CallError::Application { code: 42, message: "no".into() }));
    let panicked = next().unwrap_err();
    assert!(
        matches!(&panicked, CallError::Server { status, message }
        if *status == farcall_rpc::wire::Status::PANICKED && message == "told to"),
        "{panicked}"
    );
    assert_eq!(next().unwrap_err().executed(), Executed::Yes);
    assert_eq!((next().unwrap(), next().unwrap()), (vec![], b"six".to_vec()));
    assert_eq!((client.pending(), world.server.counters().panics.get()), (0, 1));
}

#[test]
fn sends_a_batch_in_one_message_and_returns_each_result() {
    each_has_its_own_result::<FetchThenReply>();
    each_has_its_own_result::<Fetch>();
    each_has_its_own_result::<ServerReply>();
    each_has_its_own_result::<SendReply>();
    each_has_its_own_result::<BySend<ServerReply>>();
    each_has_its_own_result::<BySend<NotifyThenFetch>>();
    each_has_its_own_result::<OverUc<ServerReply>>();
    each_has_its_own_result::<OverUd<DatagramReply>>();
}

#[test]
fn sends_a_batch_when_full_long_old_or_requested() {
    let mut world = World::new();
    let batch = BatchConfig::fixed(10).bytes_max(100).wait_us(1_000);
    let mut client = client::<ServerReply>(&mut world, batch);
    // Returns the number of batches that `calls` calls cause to be sent.
    let sends = |world: &World, client: &mut BatchCaller<ServerReply>, calls: usize, payload: &[u8]| {
        let before = client.counters().batches.get();
        for _ in 0..calls {
            submit(world, client, ECHO, payload);
        }
        client.counters().batches.get() - before
    };
    assert_eq!((sends(&world, &mut client, 9, b""), sends(&world, &mut client, 1, b"")), (0, 1));
    // Five of them occupy 120 bytes.
    assert_eq!((sends(&world, &mut client, 4, &[7; 16]), sends(&world, &mut client, 1, &[7; 16])), (0, 1));
    let batches = client.counters().batches.get();
    assert_eq!(sends(&world, &mut client, 1, b"alone"), 0);
    let next = client.progress(world.now());
    world.time.0.advance(Duration::from_micros(999));
    client.progress(world.now());
    assert_eq!(client.counters().batches.get(), batches, "its time has not come");
    let Progress::Idle { until: Some(until) } = next else { panic!("{next:?}") };
    world.time.0.advance(Duration::from_micros(1));
    assert!(until <= world.now());
    client.progress(world.now());
    assert_eq!(client.counters().batches.get(), batches + 1);
    assert_eq!(sends(&world, &mut client, 1, b"alone"), 0);
    client.flush(world.now());
    assert_eq!(client.counters().batches.get(), batches + 2);
    assert_eq!(finish(&mut world, &mut client, 17).len(), 17);
}

#[test]
fn sends_an_oversized_call_alone_and_in_order() {
    let mut world = World::new();
    let mut client = client::<FetchThenReply>(&mut world, BatchConfig::fixed(16));
    let before = sent(&client, (0, 0));
    let long = pattern(2_100);
    let first = submit(&world, &mut client, ECHO, b"before");
    let second = submit(&world, &mut client, ECHO, &long);
    let third = submit(&world, &mut client, ECHO, b"behind");
    assert_eq!(sent(&client, before), (2, 1), "the third waits for others");
    client.flush(world.now());
    let ended = finish(&mut world, &mut client, 3);
    assert_eq!(ended, [(first, Ok(b"before".to_vec())), (second, Ok(long)), (third, Ok(b"behind".to_vec()))]);
}

#[test]
fn rejects_only_the_oversized_result_of_a_batch() {
    let mut world = World::with(ResponderConfig::default().result_bytes_max(100_000));
    let mut client = client::<FetchThenReply>(&mut world, BatchConfig::fixed(6));
    let lengths = [10u32, 3_000, 4_090, 60_000, 90_000, 33];
    for len in lengths {
        submit(&world, &mut client, MAKE, &len.to_le_bytes());
    }
    let ended = finish(&mut world, &mut client, 6);
    for (len, (_, result)) in lengths.into_iter().zip(ended) {
        match result {
            Ok(result) => assert!(len != 90_000 && result == pattern(len as usize), "{len} bytes"),
            Err(error) => {
                assert_eq!(len, 90_000, "{error}");
                assert!(error.to_string().contains("longer than the server gives"), "{error}");
            }
        }
    }
    assert_eq!(world.server.handler().executed, 7);
}

#[test]
fn executes_batches_once_despite_any_loss() {
    anything_is_lost::<OverUc<ServerReply>>();
    anything_is_lost::<OverUd<DatagramReply>>();
}

fn anything_is_lost<P: Path>() {
    let losing = || {
        let faults = Faults::new("seed=5,drop=0.3".parse().unwrap(), None);
        Nic::open(&faults.around_all(SoftNic::new())).unwrap()
    };
    let mut world = World::on(losing(), ResponderConfig::default());
    let mut client = BatchCaller::<P>::new(losing(), config(BatchConfig::fixed(5))).unwrap();
    world.connect(&mut client).unwrap();
    for round in 0..20u32 {
        let mut expected = Vec::new();
        for i in 0..10u32 {
            let payload = pattern((round * i) as usize % 300);
            expected.push((submit(&world, &mut client, ECHO, &payload), Ok(payload)));
        }
        let (mut ended, mut patience) = (Vec::new(), Patience::new());
        while ended.len() < 10 {
            assert!(!patience.is_over(), "no call ends; client {:?}", client.counters());
            // Pauses between retries are long compared with an iteration.
            world.time.0.advance(Duration::from_micros(5));
            turn(&mut world, &mut client);
            while let Some(done) = client.next_completion() {
                ended.push((done.call, done.result.map(<[u8]>::to_vec)));
            }
        }
        assert_eq!(ended, expected, "round {round}");
    }
    assert_eq!((world.server.handler().executed, client.counters().batches.get()), (200, 40));
    assert!(client.counters().resent.get() > 0, "nothing was lost");
}

#[test]
fn drops_cancelled_calls_and_batches_of_them() {
    let mut world = World::new();
    let mut client = client::<ServerReply>(&mut world, BatchConfig::fixed(4));
    let executed = world.server.handler().executed;
    let calls = [b"a", b"b", b"c", b"d"].map(|payload| submit(&world, &mut client, ECHO, payload));
    assert!(!client.cancel(calls[0]) && !client.cancel(calls[2]), "they are on their way");
    let ended = finish(&mut world, &mut client, 2);
    assert_eq!(ended, [(calls[1], Ok(b"b".to_vec())), (calls[3], Ok(b"d".to_vec()))]);
    assert_eq!(world.server.handler().executed, executed + 4);
    // Between two completions of one batch.
    let calls = [b"e", b"f", b"g", b"h"].map(|payload| submit(&world, &mut client, ECHO, payload));
    let start = Instant::now();
    while !client.has_completion() {
        assert!(start.elapsed() < LOST);
        turn(&mut world, &mut client);
    }
    assert_eq!(client.next_completion().unwrap().call, calls[0]);
    assert!(!client.cancel(calls[1]) && !client.cancel(calls[2]));
    assert_eq!(client.next_completion().unwrap().call, calls[3]);
    assert!(client.next_completion().is_none() && !client.cancel(calls[3]));
    // All calls of a batch, before it is sent.
    let before = sent(&client, (0, 0));
    let calls = [b"i", b"j"].map(|payload| submit(&world, &mut client, ECHO, payload));
    assert!(!client.cancel(calls[0]));
    assert!(client.cancel(calls[1]), "nobody wants any of it");
    assert_eq!(client.pending(), 0);
    let next = submit(&world, &mut client, ECHO, b"next");
    client.flush(world.now());
    assert_eq!(finish(&mut world, &mut client, 1), [(next, Ok(b"next".to_vec()))]);
    assert_eq!(sent(&client, before), (1, 1));
    assert_eq!(world.server.handler().executed, executed + 9);
}

#[test]
fn calls_of_a_batch_end_at_the_earliest_of_their_deadlines() {
    let mut world = World::new();
    let mut client = client::<ServerReply>(&mut world, BatchConfig::fixed(4));
    let executed = world.server.handler().executed;
    let after = |world: &World, ms| CallContext {
        deadline: Some(world.now() + Duration::from_millis(ms)),
        trace_id: 0,
    };
    for ms in [3, 1, 2] {
        client.submit(ECHO, b"late", after(&world, ms), world.now()).unwrap();
    }
    world.time.0.advance(Duration::from_millis(1));
    client.progress(world.now());
    for _ in 0..3 {
        assert_eq!(client.next_completion().unwrap().result, Err(CallError::DeadlineExceeded));
    }
    let call = submit(&world, &mut client, ECHO, b"next");
    client.flush(world.now());
    assert_eq!(finish(&mut world, &mut client, 1), [(call, Ok(b"next".to_vec()))]);
    assert_eq!(world.server.handler().executed, executed + 1);
}

#[test]
fn sends_only_gathered_calls_to_a_restarted_server() {
    let mut world = World::new();
    let mut client = client::<FetchThenReply>(&mut world, BatchConfig::fixed(2));
    let sent = [b"a", b"b"].map(|payload| submit(&world, &mut client, ECHO, payload));
    let gathered = submit(&world, &mut client, ECHO, b"c");
    client.disconnect(Broken::Closed);
    world.restart();
    world.connect(&mut client).unwrap();
    for call in sent {
        let done = client.next_completion().unwrap();
        assert_eq!(
            (done.call, done.result),
            (call, Err(CallError::OutcomeUnknown(UnknownBecause::ServerRestarted)))
        );
    }
    // The open batch is not sent automatically.
    turn(&mut world, &mut client);
    let full = submit(&world, &mut client, ECHO, b"d");
    let ended = finish(&mut world, &mut client, 2);
    assert_eq!(ended, [(gathered, Ok(b"c".to_vec())), (full, Ok(b"d".to_vec()))]);
    assert_eq!(world.server.handler().executed, 2);
    // Without another connection, the calls of the open batch end as never sent.
    let gathered = submit(&world, &mut client, ECHO, b"e");
    client.disconnect(Broken::Closed);
    client.fail_all(&Broken::Closed);
    let done = client.next_completion().unwrap();
    assert_eq!((done.call, done.result), (gathered, Err(CallError::NotSent(Broken::Closed))));
}

#[test]
fn limits_batches_in_flight_to_the_window() {
    let mut world = World::new();
    let mut client = client::<Fetch>(&mut world, BatchConfig::fixed(3));
    let window = usize::from(CallerConfig::default().plan.geometry.window);
    let room = client.available();
    let mut calls = 0;
    while client.submit(ECHO, &[calls as u8], CallContext::default(), world.now()).is_ok() {
        calls += 1;
    }
    assert_eq!((calls, room), (3 * window, 3 * window));
    assert_eq!((client.pending(), client.available()), (calls, 0));
    let ended = finish(&mut world, &mut client, calls);
    assert!(ended.iter().enumerate().all(|(i, (_, result))| result.as_deref() == Ok(&[i as u8])));
}

#[test]
fn the_automatic_size_grows_while_calls_are_quick() {
    let mut world = World::new();
    let batch = BatchConfig::automatic(60_000_000).wait_us(0);
    let mut client = client::<ServerReply>(&mut world, batch);
    assert_eq!(client.batch_size(), 1);
    let start = Instant::now();
    while client.batch_size() < 4 {
        assert!(start.elapsed() < LOST, "{}", client.batch_size());
        for _ in 0..client.available().min(8) {
            submit(&world, &mut client, ECHO, b"x");
        }
        turn(&mut world, &mut client);
        while client.next_completion().is_some() {}
    }
}

#[test]
fn a_blocking_client_sends_what_it_has_gathered_when_it_waits() {
    let server = Server::builder().start(&nic(), |_| echo).unwrap();
    let address = server.address().to_string();
    let batch = BatchConfig::fixed(100).wait_us(u32::MAX);
    let options = ClientOptions::default().batch(batch);
    let mut client = Client::connect(&nic(), address, options).unwrap();
    let calls = [b"a", b"b", b"c"].map(|payload| client.submit(1, payload).unwrap());
    for (call, payload) in calls.into_iter().zip([b"a", b"b", b"c"]) {
        let done = client.wait().unwrap();
        assert_eq!((done.call, done.result.unwrap()), (call, &payload[..]));
    }
    assert!(client.wait().is_err());
    let mut reply = Vec::new();
    client.call(1, b"alone", &mut reply).unwrap();
    assert_eq!(reply, b"alone");
    assert_eq!(client.counters().batches.get(), 2);
}

#[cfg(feature = "tokio")]
#[test]
fn calls_of_tasks_travel_together() {
    let server = Server::builder().start(&nic(), |_| echo).unwrap();
    let address = server.address().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = ClientOptions::default().batch(BatchConfig::fixed(64));
        let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
        let calls = (0..200u8).map(|i| {
            let client = client.clone();
            tokio::spawn(async move { assert_eq!(client.call(1, &[i]).await.unwrap(), [i]) })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        let batches = client.inspect(|counters| counters.batches.get()).await.unwrap();
        assert!(batches < 100, "{batches} batches for 200 calls");
    });
}

#[test]
fn sizes_out_of_range_are_refused() {
    let nic = || Nic::open(&SoftNic::new()).unwrap();
    for size in [0, 129] {
        let error =
            BatchCaller::<Fetch>::new(nic(), config(BatchConfig::fixed(size))).err().unwrap().to_string();
        assert!(error.contains("1 to 128"), "{error}");
    }
    let sizing = BatchSizing::Automatic { latency_max_us: 0, tolerance_percent: 150 };
    assert!(BatchCaller::<Fetch>::new(nic(), config(BatchConfig::default().size(sizing))).is_err());
}

fn echo(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    reply.extend_from_slice(call.payload());
    Ok(())
}
