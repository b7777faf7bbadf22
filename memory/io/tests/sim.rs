//! Sessions in virtual time: over a network that loses, duplicates and reorders packets, with peers that fail.

mod support;

use std::sync::Arc;
use std::time::Duration;

use farcall_io::*;
use farcall_link::{Entropy, Nic, Region};
use farcall_sim::{Config as WorldConfig, Faults, Host, TaskId, WaitStrategy, World};
use farcall_verbs::{Endpoint, Nanos, Progress, Result, WaitSet};
use support::*;

const REQUESTS: usize = 300;

/// A program that submits random requests and checks their results.
struct Client {
    poller: Poller<CompletionLog>,
    session: Session<CompletionLog>,
    completions: CompletionLog,
    load: Load,
    taken: usize,
    completed: usize,
    failed: usize,
}

impl Client {
    fn is_finished(&self) -> bool {
        self.completed == self.taken && (self.load.count() >= REQUESTS || self.session.ended().is_some())
    }
}

impl Endpoint for Client {
    fn progress(&mut self, now: Nanos) -> Progress {
        let next = self.poller.progress(now);
        for completion in self.completions.take() {
            self.failed += usize::from(self.load.check(completion).is_err());
            self.completed += 1;
        }
        let mut submitted = false;
        while self.load.count() < REQUESTS
            && self.session.ended().is_none()
            && self.taken - self.completed < SMALL.outstanding
            // With nothing in flight, no event would wake this task.
            && (self.taken == self.completed || self.load.chance(60))
        {
            self.taken += usize::from(self.session.submit(self.load.request()).is_ok());
            submitted = true;
        }
        if submitted || next == Progress::Again { Progress::Again } else { Progress::IDLE }
    }

    fn arm(&mut self) -> Result<()> {
        self.poller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.poller.wait_set(set);
    }
}

struct Run {
    world: World,
    task: TaskId,
    target: Option<Target>,
    memory: Arc<Region>,
    peer: Host,
}

fn nic(host: &Host, seed: u64) -> Nic {
    Nic::open(host).unwrap().with_entropy(Entropy::seeded(seed))
}

fn run(seed: u64) -> Run {
    let mut config = WorldConfig::new(seed);
    config.faults = if seed.is_multiple_of(4) { Faults::NONE } else { Faults::BAD };
    // READs access memory late, so requests that are posted after them would overtake them.
    config.params.read_max_ns = if seed.is_multiple_of(2) { 20_000 } else { 600 };
    config.params.placement_in_order = seed.is_multiple_of(3);
    let mut world = World::new(config);
    let (host, peer) = (world.add_node(), world.add_node());
    let (own, its) = (nic(&host, seed), nic(&peer, seed + 1));
    let all = [Combining::Single, Combining::Doorbell, Combining::Merge, Combining::MergeAndChain];
    let combining = all[seed as usize / 2 % 4];
    let config = Config { combining, connections: 1 + seed as usize % 4, ..SMALL };
    let memory = granted(&its);
    let mut target = Target::new(&its, memory.clone(), config.connections).unwrap();
    let mut poller = Poller::new(&own, PollerConfig::default()).unwrap();
    let completions = CompletionLog::default();
    let session = poller.open(config, window(8 << 10 << (seed % 4)), completions.clone()).unwrap();
    target.connect(&session.infos()).unwrap();
    session.connect(&target.infos(), &[target.grant()]).unwrap();
    let load = Load::new(seed, &own, &session, 0, SPAN);
    let client = Client { poller, session, completions, load, taken: 0, completed: 0, failed: 0 };
    let waiting = if seed % 5 < 2 { WaitStrategy::Event } else { WaitStrategy::Poll };
    let task = world.spawn(&host, waiting, client);
    Run { world, task, target: Some(target), memory, peer }
}

impl Run {
    fn client(&self) -> &Client {
        self.world.inspect(self.task).unwrap()
    }

    /// Runs the world until `is_done` returns true.
    fn until(&mut self, is_done: impl Fn(&Client) -> bool) {
        let task = self.task;
        let is_reached = self
            .world
            .run_while_not(Duration::from_secs(1_000), |world| is_done(world.inspect(task).unwrap()));
        let client = self.client();
        assert!(is_reached, "{} of {} requests are over", client.completed, client.taken);
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("FARCALL_SIM_FIRST").unwrap_or(1);
    first..first + number("FARCALL_SIM_SEEDS").unwrap_or(count)
}

#[test]
fn transfers_correct_bytes_over_a_faulty_network() {
    for seed in seeds(40) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = run(seed);
        run.until(Client::is_finished);
        let client = run.client();
        assert_eq!((client.failed, client.taken, client.completed), (0, REQUESTS, REQUESTS));
        client.load.check_memory(&run.memory);
    }
}

#[test]
fn a_seed_repeats_to_the_bit() {
    let hash = |seed| {
        let mut run = run(seed);
        run.until(Client::is_finished);
        run.world.trace_hash()
    };
    assert_eq!(hash(3), hash(3));
    assert_ne!(hash(3), hash(7));
}

/// Every successful read returns the expected bytes, every request completes once, and no session remains.
#[test]
fn completes_requests_without_wrong_bytes_when_a_peer_crashes() {
    for seed in seeds(40) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = run(seed);
        let dies_at = REQUESTS * (1 + seed as usize % 8) / 10;
        run.until(|client| client.completed >= dies_at);
        match seed % 3 {
            // The peer loses power, its program exits, or the network path is cut.
            0 => run.world.crash(run.peer.id()),
            1 => run.target = None,
            _ => run.world.partition(farcall_sim::NodeId(0), run.peer.id()),
        }
        run.until(Client::is_finished);
        let client = run.client();
        assert!(client.session.ended().is_some() && client.failed > 0 && client.completed == client.taken);
        run.until(|client| client.poller.sessions() == 0);
        assert!(run.client().completions.take().is_empty(), "a request was told of twice");
    }
}
