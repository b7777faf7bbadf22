//! Sessions on the software RNIC: bytes, counts, refusals, failures, threads.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use farcall_drive::{Driver, Stop};
use farcall_io::*;
use farcall_link::{Nic, RemoteRegion, WaitStrategy};
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, MonotonicClock, Nanos};
use support::*;

/// Deadline after which a test fails, generous enough for a busy machine.
const LOST: Duration = Duration::from_secs(600);

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Polls until `count` requests have completed.
fn wait(ends: &mut Ends, count: usize) -> Vec<TransferCompletion<RequestContext>> {
    let (mut completed, until) = (ends.completions.take(), Instant::now() + LOST);
    while completed.len() < count {
        assert!(Instant::now() < until, "only {} of {count} requests are over", completed.len());
        ends.poller.progress(Nanos(0));
        completed.extend(ends.completions.take());
    }
    completed
}

/// Admission policy that the test opens.
#[derive(Clone, Default)]
struct Gate(Arc<AtomicBool>);

impl Gate {
    fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Admission for Gate {
    fn admits(&mut self, _in_flight_bytes: u64, _bytes: u64) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn returns_bytes_of_sequential_execution() {
    let all = [Combining::Single, Combining::Doorbell, Combining::Merge, Combining::MergeAndChain];
    for (seed, combining) in (0..).zip(all.into_iter().cycle().take(24)) {
        println!("seed {seed}, {combining:?}");
        let nic = nic();
        let config = Config { combining, connections: 1 + seed as usize % 4, ..SMALL };
        let mut ends = ends(&nic, config, window(16 << 10 << (seed % 3)));
        let mut load = Load::new(seed, &nic, &ends.session, 0, SPAN);
        let mut completed = 0;
        while completed < 1_000 {
            if load.count() < 1_000 && load.count() - completed < SMALL.outstanding && load.chance(80) {
                ends.session.submit(load.request()).unwrap();
            } else {
                ends.poller.progress(Nanos(0));
            }
            for completion in ends.completions.take() {
                load.check(completion).unwrap();
                completed += 1;
            }
        }
        load.check_memory(&ends.memory);
        let counts = ends.session.counts();
        assert_eq!(counts.reads + counts.writes, 1_000);
        assert_eq!(counts.read_work + counts.write_work + counts.merged, 1_000);
    }
}

#[test]
fn merges_accumulated_requests() {
    let nic = nic();
    let gate = Gate::default();
    let mut ends = ends(&nic, SMALL, gate.clone());
    // The first request is alone and posted at once; it is in flight until the poller runs.
    ends.session.submit(Request::write(39_000, vec![1; 10], context_of(0, Vec::new()))).unwrap();
    assert_eq!(ends.session.counts().write_work, 1);
    for at in 0..8_u8 {
        let offset = 1_000 + 100 * u64::from(at);
        ends.session.submit(Request::write(offset, vec![at; 100], context_of(0, Vec::new()))).unwrap();
        ends.session
            .submit(Request::read(20_000 + 1_000 * u64::from(at), vec![0; 8], context_of(0, vec![0; 8])))
            .unwrap();
    }
    let before = ends.session.counts();
    assert_eq!((before.write_work, before.read_work, before.doorbells), (1, 0, 1), "the gate is closed");
    assert!(before.window_stalls >= 16);
    gate.open();
    let completed = wait(&mut ends, 17);
    assert!(completed.iter().all(|completion| completion.result.is_ok()));
    let counts = ends.session.counts();
    // Eight adjacent WRITEs become one; this one and seven READs fill a chain.
    assert_eq!((counts.write_work, counts.read_work), (2, 8));
    assert_eq!((counts.merged, counts.chained, counts.doorbells), (7, 7, 3));
    let mut bytes = vec![0; 800];
    ends.memory.copy_out(1_000, &mut bytes);
    assert!(bytes.chunks(100).zip(0_u8..).all(|(chunk, at)| chunk == [at; 100]));
}

#[test]
fn fails_only_requests_of_a_failed_work_request() {
    let nic = nic();
    let gate = Gate::default();
    let config = Config { connections: 1, ..SMALL };
    let memory = granted(&nic);
    let mut target = Target::new(&nic, memory.clone(), 1).unwrap();
    let mut poller = Poller::new(&nic, PollerConfig::default()).unwrap();
    let completions = CompletionLog::default();
    let session = poller.open(config, gate.clone(), completions.clone()).unwrap();
    target.connect(&session.infos()).unwrap();
    // The second grant has a key that the peer never granted.
    let grant = target.grant();
    let wrong = RemoteRegion { rkey: grant.rkey ^ 0x5a5a_0000, ..grant };
    session.connect(&target.infos(), &[grant, wrong]).unwrap();
    let mut ends = Ends { session, poller, target, memory, completions };
    let write = |grant, offset, id| Request {
        grant,
        ..Request::write(offset, vec![7; 100], context_of(id, Vec::new()))
    };
    ends.session.submit(write(0, 0, 0)).unwrap();
    wait_alone(&mut ends);
    ends.session.submit(write(0, 0, 0)).unwrap();
    // These wait for the gate. Then they are posted with one doorbell, and the second work request fails.
    ends.session.submit(write(0, 2_000, 1)).unwrap();
    (2..6).for_each(|id| ends.session.submit(write(1, 100 * id as u64, id)).unwrap());
    ends.session.submit(write(0, 5_000, 6)).unwrap();
    // It overlaps one of them in the valid grant, so it waits, and is never posted.
    ends.session.submit(write(0, 5_050, 7)).unwrap();
    gate.open();
    let mut completed = wait(&mut ends, 8);
    completed.sort_by_key(|completion| completion.context.id);
    assert!(completed[..2].iter().all(|completion| completion.result.is_ok()), "{:?}", completed[1].result);
    for completion in &completed[2..6] {
        assert!(matches!(completion.result, Err(TransferFailure::Failed(_))), "{completion:?}");
    }
    assert!(matches!(completed[6].result, Err(TransferFailure::Unknown(_))), "{:?}", completed[6].result);
    assert!(
        matches!(completed[7].result, Err(TransferFailure::NotPosted(SessionEnd::PairFailed { .. }))),
        "{:?}",
        completed[7]
    );
    assert!(completed.iter().all(|completion| completion.buffer.len_bytes() == 100), "memory comes back");
    let refused = ends.session.submit(write(0, 0, 8)).unwrap_err();
    assert!(matches!(refused.why, Refusal::Ended(SessionEnd::PairFailed { .. })));
    assert_eq!(refused.request.context.id, 8);
    until_forgotten(&mut ends);
}

/// Polls until the first request has completed.
fn wait_alone(ends: &mut Ends) {
    assert_eq!(wait(ends, 1).len(), 1);
}

/// Polls until the poller has released a session that has ended.
fn until_forgotten(ends: &mut Ends) {
    let until = Instant::now() + LOST;
    while ends.poller.sessions() > 0 {
        assert!(Instant::now() < until, "the session is not let go");
        ends.poller.progress(Nanos(0));
    }
    assert!(ends.completions.take().is_empty(), "a request was told of twice");
}

#[test]
fn completes_each_request_once_when_the_peer_leaves() {
    let nic = nic();
    for seed in 0..20 {
        let mut ends = ends(&nic, SMALL, window(16 << 10));
        let mut load = Load::new(seed, &nic, &ends.session, 0, SPAN);
        let (mut taken, mut completed, mut failed) = (0, 0, 0);
        let goes_at = 50 + 10 * seed as usize;
        let until = Instant::now() + LOST;
        while ends.session.ended().is_none() || completed < taken {
            assert!(Instant::now() < until, "{completed} of {taken} requests are over");
            if taken - completed < SMALL.outstanding && load.chance(70) {
                taken += usize::from(ends.session.submit(load.request()).is_ok());
            } else {
                ends.poller.progress(Nanos(0));
            }
            if load.count() == goes_at {
                ends.target.close();
            }
            for completion in ends.completions.take() {
                failed += usize::from(load.check(completion).is_err());
                completed += 1;
            }
        }
        assert!(failed > 0 && completed == taken);
        until_forgotten(&mut ends);
    }
}

#[test]
fn completes_all_requests_when_a_session_is_closed() {
    let nic = nic();
    let mut ends = ends(&nic, SMALL, Gate::default());
    let write = |offset, id| Request::write(offset, vec![3; 4_000], context_of(id, Vec::new()));
    ends.session.submit(write(0, 0)).unwrap();
    // The gate holds back this request, so it is never posted.
    ends.session.submit(write(10_000, 1)).unwrap();
    ends.session.close();
    let completed = ends.completions.take();
    assert_eq!(completed.len(), 1, "what waits is over at once");
    assert!(matches!(completed[0].result, Err(TransferFailure::NotPosted(SessionEnd::Closed))));
    assert_eq!(completed[0].context.id, 1);
    let completed = wait(&mut ends, 1);
    // The software RNIC may have executed it before the close.
    assert!(
        matches!(completed[0].result, Ok(()) | Err(TransferFailure::Unknown(SessionEnd::Closed))),
        "{:?}",
        completed[0]
    );
    until_forgotten(&mut ends);
    let mut untouched = [0; 10];
    ends.memory.copy_out(10_000, &mut untouched);
    assert_eq!(untouched, [0; 10]);
}

#[test]
fn returns_invalid_requests_with_the_reason() {
    let nic = nic();
    let mut ends = ends(&nic, SMALL, Gate::default());
    let other = support::ends(&nic, SMALL, Window::OPEN);
    let write = |offset, len| Request::write(offset, vec![0; len], context_of(9, Vec::new()));
    let why = |request| *ends.session.submit(request).map_err(|refused| Box::new(refused.why)).unwrap_err();
    assert!(matches!(why(write(0, 0)), Refusal::NoSuchRange { len_bytes: 0, .. }));
    let end = ends.memory.len_bytes() as u64;
    assert!(matches!(why(write(end - 5, 6)), Refusal::NoSuchRange { grant: 0, .. }));
    assert!(matches!(why(write(u64::MAX, 6)), Refusal::NoSuchRange { .. }));
    let no_grant = why(Request { grant: 1, ..write(0, 6) });
    assert_eq!(no_grant.to_string(), "6 bytes at 0 are no range of grant 1, which has 0 bytes");
    let foreign = other.session.attach(granted(&nic)).slice(0, 8);
    assert!(matches!(why(Request::read(0, foreign, context_of(0, Vec::new()))), Refusal::ForeignMemory));
    let shared = |len_bytes| Bytes::from(vec![7; len_bytes]);
    assert!(matches!(why(Request::read(0, shared(8), context_of(0, Vec::new()))), Refusal::SharedMemory));
    let too_long = why(Request::write(0, shared(SMALL.pool_bytes + 1), context_of(0, Vec::new())));
    assert!(matches!(too_long, Refusal::TooLong { max_bytes, .. } if max_bytes <= SMALL.pool_bytes as u64));
    let mut poller = Poller::new(&nic, PollerConfig::default()).unwrap();
    let unconnected = poller.open(SMALL, Window::OPEN, CompletionLog::default()).unwrap();
    assert!(matches!(unconnected.submit(write(0, 6)).unwrap_err().why, Refusal::NotConnected));
    let few = PollerConfig { completions: 63, ..PollerConfig::default() };
    let refused = Poller::new(&nic, few).unwrap().open(SMALL, Window::OPEN, CompletionLog::default());
    assert!(refused.err().unwrap().to_string().contains("64 completions"));
    // The session is full: none of these has completed.
    (0..SMALL.outstanding).for_each(|id| ends.session.submit(write(id as u64 * 8, 8)).unwrap());
    let refused = ends.session.submit(write(0, 6)).unwrap_err();
    assert!(matches!(refused.why, Refusal::Full { outstanding: 64 }));
    assert_eq!(refused.request.context.id, 9);
    wait(&mut ends, SMALL.outstanding);
    ends.session.submit(write(0, 6)).unwrap();
}

#[test]
fn writes_shared_memory_and_returns_it() {
    let nic = nic();
    let mut ends = ends(&nic, SMALL, window(16 << 10));
    let all = Bytes::from((0..1_000_u32).map(|at| at as u8).collect::<Vec<u8>>());
    for (id, at) in (0..).zip([0, 300, 600]) {
        let request = Request::write(2 * at as u64, all.slice(at..at + 300), context_of(id, Vec::new()));
        ends.session.submit(request).unwrap();
    }
    let completed = wait(&mut ends, 3);
    for completion in completed {
        let Buffer::Shared(bytes) = completion.buffer else { panic!("{:?}", completion.buffer) };
        assert_eq!((completion.result, bytes.len()), (Ok(()), 300));
    }
    let mut found = vec![0; 300];
    for at in [0, 300, 600] {
        ends.memory.copy_out(2 * at, &mut found);
        assert_eq!(found, all[at..at + 300]);
    }
}

#[test]
fn ends_sessions_of_one_poller_independently() {
    let nic = nic();
    let mut poller = Poller::new(&nic, PollerConfig::default()).unwrap();
    let mut sessions = Vec::new();
    for seed in 0..3 {
        let memory = granted(&nic);
        let mut target = Target::new(&nic, memory.clone(), 4).unwrap();
        let completions = CompletionLog::default();
        let session = poller.open(SMALL, window(16 << 10), completions.clone()).unwrap();
        target.connect(&session.infos()).unwrap();
        session.connect(&target.infos(), &[target.grant()]).unwrap();
        let load = Load::new(seed, &nic, &session, 0, SPAN);
        sessions.push((session, target, memory, completions, load, 0));
    }
    let until = Instant::now() + LOST;
    while sessions.iter().any(|(.., completed)| *completed < 300) {
        assert!(Instant::now() < until);
        for (session, _, _, completions, load, completed) in &mut sessions {
            while load.count() < 300 && load.count() - *completed < SMALL.outstanding && load.chance(90) {
                session.submit(load.request()).unwrap();
            }
            for completion in completions.take() {
                load.check(completion).unwrap();
                *completed += 1;
            }
        }
        poller.progress(Nanos(0));
    }
    // One session is closed; the others continue.
    let (first, ..) = sessions.remove(0);
    drop(first);
    while poller.sessions() == 3 {
        assert!(Instant::now() < until);
        poller.progress(Nanos(0));
    }
    let (session, _, memory, completions, load, _) = &mut sessions[0];
    session.submit(load.request()).unwrap();
    let mut completed = completions.take();
    while completed.is_empty() {
        assert!(Instant::now() < until);
        poller.progress(Nanos(0));
        completed = completions.take();
    }
    load.check(completed.pop().unwrap()).unwrap();
    load.check_memory(memory);
}

#[test]
fn shares_a_session_under_every_wait_strategy() {
    const THREADS: usize = 4;
    const EACH: usize = 400;
    for waiting in [
        WaitStrategy::Busy,
        WaitStrategy::EventBatch,
        WaitStrategy::NaiveHybrid,
        WaitStrategy::Adaptive { max_retry: 120 },
    ] {
        println!("{waiting:?}");
        let nic = nic();
        let memory = granted(&nic);
        let mut target = Target::new(&nic, memory.clone(), SMALL.connections).unwrap();
        let mut poller = Poller::new(&nic, PollerConfig::default()).unwrap();
        let session = poller.open(SMALL, window(16 << 10), ByThread).unwrap();
        target.connect(&session.infos()).unwrap();
        session.connect(&target.infos(), &[target.grant()]).unwrap();
        let stop = Stop::new().unwrap();
        std::thread::scope(|scope| {
            let runner = {
                let stop = stop.clone();
                scope.spawn(move || {
                    Driver::new(MonotonicClock::new(), waiting, stop).run(&mut poller).unwrap()
                })
            };
            let users: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let session = &session;
                    scope.spawn(move || use_stripes(session, thread, THREADS, EACH))
                })
                .collect();
            users.into_iter().for_each(|user| user.join().unwrap());
            stop.request();
            runner.join().unwrap();
        });
        let counts = session.counts();
        assert_eq!(counts.reads + counts.writes, (2 * THREADS * EACH) as u64);
    }
}

/// Sends each completion to the thread that submitted the request.
struct ByThread;

impl Handler for ByThread {
    type Context = std::sync::mpsc::Sender<TransferCompletion<()>>;

    fn on_completion(&self, completion: TransferCompletion<Self::Context>) {
        let TransferCompletion { context, buffer, result } = completion;
        let _ = context.send(TransferCompletion { context: (), buffer, result });
    }
}

/// Writes and reads every n-th page, so that requests of different threads are adjacent and merge. A page is read
/// without waiting for its write.
fn use_stripes(session: &Session<ByThread>, thread: usize, threads: usize, each: usize) {
    const PAGE: usize = 500;
    let (tell, completions) = std::sync::mpsc::channel();
    for round in 0..each {
        let page = thread + threads * (round % 20);
        let offset = (page * PAGE) as u64;
        let bytes: Vec<u8> = (0..PAGE).map(|at| (round * 31 + thread * 7 + at) as u8).collect();
        session.submit(Request::write(offset, bytes.clone(), tell.clone())).unwrap();
        session.submit(Request::read(offset, vec![0; PAGE], tell.clone())).unwrap();
        let wait = || completions.recv_timeout(LOST).expect("requests are told of");
        let (write, read) = (wait(), wait());
        assert!(write.result.is_ok() && read.result.is_ok());
        assert_eq!(read.buffer.into_owned().unwrap(), bytes, "thread {thread}, round {round}");
    }
}
