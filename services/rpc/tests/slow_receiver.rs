//! A client that makes calls and rarely receives their results, concurrently with one that receives them normally.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall_link::{Datagrams, Geometry, LocalSlice, Nic, Plan, QpSizes, Receive, ReceiveChain, Region};
use farcall_rpc::*;
use farcall_verbs::{Access, CqInitAttr, Endpoint, RawCq, Wc};
use support::*;

/// Number of calls of the other client, one at a time. Their results are too long to be sent inline: the next one
/// waits until the previous one has been sent.
const CALLS: usize = 400;
/// Maximum number of receives posted in the meantime.
const RECEIVES_MAX: usize = 100;
const WINDOW: u16 = 256;

type Herd = OverUc<DatagramReply>;

/// A queue pair for results that posts a receive at intervals.
struct Lazy {
    every: Duration,
    pair: Datagrams,
    cq: Box<dyn RawCq>,
    receive: ReceiveChain,
    posted: usize,
    last: Instant,
}

impl Lazy {
    fn new(nic: &Nic, every: Duration) -> Self {
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 256, channel: None }).unwrap();
        let config = QpSizes {
            send_depth: 16,
            recv_depth: 128,
            signal_every: 1,
            inline_max_bytes: 0,
            sges_max: 1,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(nic, &*cq, config, None).unwrap();
        pair.start().unwrap();
        let memory = Region::alloc(&**nic.pd(), 8_192, Access::LOCAL_WRITE).unwrap();
        let region = pair.attach(Arc::new(memory));
        let local = [LocalSlice { region, offset: 0, len_bytes: 8_192 }];
        let receive = pair.receive_chain(&[Receive { local: &local, tag: 0 }]);
        Self { every, pair, cq, receive, posted: 0, last: Instant::now() }
    }

    /// Posts a receive if one is due, and polls completions.
    fn step(&mut self) {
        let mut wc = [Wc::default()];
        while self.cq.poll(&mut wc).unwrap() == 1 {
            self.pair.complete(&wc[0]);
        }
        if self.last.elapsed() > self.every {
            self.pair.post_receives(&self.receive, 0..1).unwrap();
            (self.posted, self.last) = (self.posted + 1, Instant::now());
        }
    }
}

fn others_are_not_held_up(every: Duration) {
    let mut world = World::new();
    let mut honest = world.client_with::<Herd>(with_window(1));
    world.call(&mut honest, ECHO, b"known").unwrap();
    let mut lazy = Lazy::new(&world.nic, every);
    let mut hostile = Caller::<Herd>::new(world.nic.clone(), with_window(WINDOW)).unwrap();
    let mut hello = hostile.hello().unwrap();
    hello.datagrams = Some(lazy.pair.info(&world.nic));
    let now = world.now();
    let (_, welcome) = world.server.accept(&hello, now).unwrap();
    hostile.welcome(welcome, now).unwrap();
    for _ in 0..WINDOW {
        hostile.submit(ECHO, b"mine", CallContext::default(), world.now()).unwrap();
    }
    let mut patience = Patience::new();
    while world.server.handler().executed <= WINDOW.into() {
        assert!(!patience.is_over(), "its calls are not executed");
        world.step(&mut hostile);
        lazy.step();
    }
    for call in 0..CALLS {
        let payload = pattern(1_000 + call);
        honest.submit(ECHO, &payload, CallContext::default(), world.now()).unwrap();
        let mut patience = Patience::new();
        let result = loop {
            assert!(!patience.is_over(), "call {call} does not end");
            assert!(lazy.posted < RECEIVES_MAX, "a receive was waited for with each of {call} calls");
            lazy.step();
            hostile.progress(world.now());
            world.step(&mut honest);
            if let Some(done) = honest.next_completion() {
                break done.result.unwrap().to_vec();
            }
        };
        assert_eq!(result, payload);
    }
}

fn with_window(window: u16) -> CallerConfig {
    let plan = CallerConfig::default().plan;
    let geometry = Geometry { window, ..plan.geometry };
    CallerConfig::default().plan(Plan { geometry, ..plan }).silence_max(Duration::from_secs(3_600))
}

#[test]
fn a_client_that_takes_no_results_does_not_hold_up_others() {
    others_are_not_held_up(Duration::from_secs(3_600));
}

#[test]
fn serves_others_despite_a_client_that_reads_slowly() {
    // Before the device times out for a receiver that does nothing.
    others_are_not_held_up(Duration::from_millis(100));
}
