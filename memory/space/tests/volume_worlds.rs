//! A volume on three nodes, or on two and a witness, with two replicas, in virtual time. At most one of the three at a
//! time is missing state: it exits and is restarted empty, any number of times, while clients exit at any step of a
//! claim, of a repeated grant and of a copy. In the end all acknowledged writes are read.

mod net;
mod support;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use farcall_link::SplitMix64;
use farcall_memory::*;
use farcall_sim::{Config as WorldConfig, Faults, Host, NodeId, TaskId, WaitStrategy, World};
use farcall_verbs::Mtu;
use net::{ClientProgram, NodeProgram, nic};
use support::Load;

const SLAB_BYTES: usize = 4 * PAGE_BYTES;
const PAGES: usize = 18;
const METADATA_BYTES: u64 = 16 * PAGE_BYTES as u64;
const TERM: Duration = Duration::from_millis(200);
const NODES: usize = 3;
/// Longer than a client takes to detect a change.
const LOOKS: Duration = Duration::from_millis(20);
/// Token of a write issued by a test itself; other tokens count from one.
const TEST_TOKEN: u64 = 1 << 40;
/// Virtual time after which a wait has failed.
const LOST_AFTER: Duration = Duration::from_secs(100);

const DONATED: NodeConfig = NodeConfig {
    slab_bytes: SLAB_BYTES,
    slabs: 24,
    term: TERM,
    leases_max: 8,
    slabs_per_lease_max: 100,
    pairs_max: 4,
    volumes_max: 2,
    metadata_bytes_max: 1 << 20,
};

fn config() -> ClientConfig {
    ClientConfig {
        name: "client".into(),
        nodes: (0..NODES).map(|node| node.to_string()).collect(),
        nodes_max: NODES,
        size_bytes: (PAGES * PAGE_BYTES) as u64,
        replicas: 2,
        slab_bytes: SLAB_BYTES as u64,
        suspect_after: Duration::from_millis(50),
        patience: Duration::from_secs(2),
        pages_max: 256,
        connections: 1,
        pool_bytes: 1 << 18,
        caller_polling: false,
        scrub_pages_per_s: 0,
        spill: None,
    }
}

fn volume(holder: u8) -> VolumeConfig {
    VolumeConfig::new("files".to_owned(), [7; 32], [holder; 16], METADATA_BYTES)
}

/// Faults during a claim, by the number of the call.
#[derive(Clone, Copy, Default)]
struct ClaimFaults {
    client_exits_at: Option<u64>,
    node_exits_at: Option<u64>,
    node_starts_at: Option<u64>,
}

struct Run {
    world: World,
    hosts: Vec<Host>,
    nodes: Vec<Option<TaskId>>,
    client_host: Host,
    client: Option<TaskId>,
    load: Option<Load>,
    rng: SplitMix64,
    incarnations: u64,
    /// The node that is a witness; `None` if there is none.
    witness: Option<usize>,
    holder: u8,
    /// The node that may exit.
    faulty: usize,
    replicas: usize,
    patience: Duration,
    /// The page that the test itself writes.
    page: usize,
}

impl Run {
    /// Creates a world in which a page takes one packet, so that a client that exits tears no replica.
    fn new(seed: u64) -> Self {
        Self::in_world(WorldConfig::new(seed))
    }

    /// Creates a world in which a page takes several packets: a client that exits in between tears a replica.
    fn with_small_packets(seed: u64) -> Self {
        let mut world_config = WorldConfig::new(seed);
        world_config.params.mtu = Mtu::Mtu1024;
        Self::in_world(world_config)
    }

    /// Creates a world in which a page takes several packets, and at most two of a queue pair are in flight.
    fn with_few_packets(seed: u64) -> Self {
        let mut world_config = WorldConfig::new(seed);
        let params = &mut world_config.params;
        (params.mtu, params.unacknowledged_min, params.unacknowledged_max) = (Mtu::Mtu1024, 2, 2);
        Self::in_world(world_config)
    }

    fn in_world(mut world_config: WorldConfig) -> Self {
        let seed = world_config.seed;
        world_config.faults = if is_lossy(seed) { Faults::BAD } else { Faults::NONE };
        let mut world = World::new(world_config);
        let hosts: Vec<Host> = (0..NODES).map(|_| world.add_node()).collect();
        let client_host = world.add_node();
        let mut run = Self {
            world,
            hosts,
            nodes: vec![None; NODES],
            client_host,
            client: None,
            load: Some(Load::new(seed, PAGES)),
            rng: SplitMix64::new(seed),
            incarnations: seed << 32,
            // No node, or each of the three in turn.
            witness: (0..NODES).nth(((seed / 8 + 3) % 4) as usize),
            holder: 1,
            faulty: 0,
            replicas: config().replicas,
            patience: config().patience,
            page: 0,
        };
        (0..NODES).for_each(|node| run.start(node));
        run
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn start(&mut self, node: usize) {
        self.incarnations += 1;
        let config = if self.witness == Some(node) { DONATED.witness() } else { DONATED };
        let program = NodeProgram::new(&self.hosts[node], config, self.incarnations);
        self.nodes[node] = Some(self.world.spawn(&self.hosts[node], WaitStrategy::Event, program));
    }

    fn exit(&mut self, node: usize) {
        if let Some(task) = self.nodes[node].take() {
            self.world.kill(task);
        }
    }

    fn client_exits(&mut self) {
        let Some(task) = self.client.take() else { return };
        let client = self.world.endpoint::<ClientProgram>(task).unwrap();
        let mut load = std::mem::replace(&mut client.load, Load::new(0, 0));
        self.world.kill(task);
        load.forget_in_progress();
        assert_eq!(load.failed, [], "requests failed");
        self.load = Some(load);
    }

    /// Claims the volume and starts a client with it.
    fn claim(&mut self, faults: ClaimFaults) -> Result<(), OpenError> {
        self.incarnations += 1;
        let (nic, volume) = (nic(&self.client_host, self.incarnations), volume(self.holder));
        let config = ClientConfig { patience: self.patience, replicas: self.replicas, ..config() };
        let now = Cell::new(self.world.now());
        let (mut step, mut has_exited) = (0, false);
        let call = |at: usize, request: &wire::Request| {
            step += 1;
            let pause = Duration::from_micros(self.rng.below(100));
            self.world.run_for(pause);
            let exits_before = self.rng.below(2) == 0;
            has_exited |= faults.client_exits_at == Some(step) && exits_before;
            if faults.node_exits_at == Some(step) && exits_before {
                self.exit(self.faulty);
            }
            let unreachable = || NodeCallError::Unreachable("no answer".into());
            let task = self.nodes[at].filter(|_| !has_exited).ok_or_else(unreachable)?;
            now.set(self.world.now());
            let node = &mut self.world.endpoint::<NodeProgram>(task).unwrap().node;
            let reply = node.handle(&request.to_bytes(), now.get()).map_err(NodeCallError::Refused);
            has_exited |= faults.client_exits_at == Some(step);
            if faults.node_exits_at == Some(step) {
                self.exit(self.faulty);
                if at == self.faulty {
                    return Err(unreachable());
                }
            }
            if faults.node_starts_at == Some(step) && self.nodes[self.faulty].is_none() {
                self.start(self.faulty);
            }
            if has_exited { Err(unreachable()) } else { reply }
        };
        let claimed = Engine::claim(&nic, config, &volume, call, || now.get());
        if has_exited {
            return Ok(());
        }
        let (engine, takeover) = claimed?;
        let load = self.load.take().unwrap();
        if !takeover.is_new {
            takeover.metadata.iter().for_each(|metadata| load.check_metadata(metadata));
        }
        let ids: Vec<NodeId> = self.hosts.iter().map(Host::id).collect();
        let program = ClientProgram::new(&self.client_host, engine, &ids, load);
        self.client = Some(self.world.spawn(&self.client_host, WaitStrategy::Event, program));
        Ok(())
    }

    /// Claims the volume, and waits until all nodes are members and all replicas are in sync.
    fn claim_whole(&mut self) {
        self.claim(ClaimFaults::default()).unwrap();
        self.until_whole();
    }

    fn client(&mut self) -> Option<&mut ClientProgram> {
        self.world.endpoint::<ClientProgram>(self.client?)
    }

    fn until(&mut self, what: &str, is_done: impl Fn(&ClientProgram) -> bool) {
        let task = self.client.unwrap();
        let done = self.world.run_while_not(LOST_AFTER, |world| {
            let client = world.inspect::<ClientProgram>(task).unwrap();
            assert_eq!(client.load.failed, [], "requests failed");
            is_done(client)
        });
        let client = self.client().unwrap();
        let status = client.engine.status();
        assert!(done, "not in time: {what}; {status:?}, {} under way", client.load.in_progress());
    }

    fn any_step(&mut self, bound: u64) -> Option<u64> {
        (self.below(3) == 0).then(|| 1 + self.rng.below(bound))
    }

    fn claim_with_faults(&mut self) {
        if self.below(4) == 0 {
            // Another machine, after the lease of the last one has expired.
            self.holder = self.holder.wrapping_add(1);
            self.world.run_for(TERM);
        }
        let faults = ClaimFaults {
            client_exits_at: self.any_step(60),
            node_exits_at: self.any_step(60),
            node_starts_at: self.any_step(60),
        };
        self.claim(faults).unwrap();
    }

    /// Makes a random event happen to the client or the faulty node.
    fn something(&mut self) {
        match self.below(6) {
            0 => self.client_exits(),
            1 => self.exit(self.faulty),
            2 => {
                self.client_exits();
                self.exit(self.faulty);
            }
            3 if self.nodes[self.faulty].is_none() => self.start(self.faulty),
            _ if self.client.is_none() => self.claim_with_faults(),
            _ => {
                let make = self.below(30);
                if let Some(client) = self.client() {
                    client.to_make += make;
                    client.metadata_writes_to_make += 1;
                }
            }
        }
        // Most pauses are so short that work is still in progress. Some are so long that replicas are dropped.
        let pause = match self.below(8) {
            0 => self.below(150_000),
            1 | 2 => self.below(10_000),
            _ => self.below(300),
        };
        self.world.run_for(Duration::from_micros(pause));
    }

    /// Waits until each node is a member and all replicas are in sync, also if the client has not detected yet that a
    /// node was restarted.
    fn until_whole(&mut self) {
        let (client, nodes) = (self.client.unwrap(), self.nodes.clone());
        let done = self.world.run_while_not(LOST_AFTER, |world| {
            let now = world.now();
            let status = world.inspect::<ClientProgram>(client).unwrap().engine.status();
            let has_it = |node: &Option<TaskId>| {
                let program = node.and_then(|task| world.inspect::<NodeProgram>(task)).unwrap();
                program.node.status(now).volumes.iter().any(|volume| volume.is_held)
            };
            status.degraded == 0
                && status.nodes.iter().all(|node| node.link == LinkStatus::Up)
                && nodes.iter().all(has_it)
        });
        assert!(done, "not in time: all is in sync; {:?}", self.client().unwrap().engine.status());
    }

    /// Starts a write that fills the page with `byte`.
    fn begin_page(&mut self, byte: u8) {
        let (now, offset) = (self.world.now(), (self.page * PAGE_BYTES) as u64);
        let work = Work::Write(vec![byte; PAGE_BYTES].into());
        self.client().unwrap().overwrite(Request { token: TEST_TOKEN, offset, work }, now);
    }

    /// Fills the page of a new volume, and leaves no client.
    fn write_page(&mut self, byte: u8) {
        self.claim_whole();
        self.begin_page(byte);
        self.until("the page is written", ClientProgram::is_done);
        self.until_whole();
        self.client_exits();
    }

    /// Starts a client and a request of it, and lets the client exit after `steps` steps of the world. Returns whether
    /// the request had completed.
    fn exit_during(&mut self, begin: impl FnOnce(&mut Self), steps: u32) -> bool {
        self.claim_whole();
        self.exit_after(begin, steps)
    }

    /// Starts a request of the client, and lets the client exit like [`Self::exit_during`].
    fn exit_after(&mut self, begin: impl FnOnce(&mut Self), steps: u32) -> bool {
        begin(self);
        for _ in 0..steps {
            assert!(self.world.step());
        }
        let has_ended = self.client().unwrap().is_done();
        self.client_exits();
        has_ended
    }

    /// Returns the content of the page at each node that has a replica of it, with the node: the byte with which the
    /// replica is filled, or `None` if it is torn. No other slab was written.
    fn contents(&self) -> Vec<(Option<u8>, usize)> {
        contents(&self.world, &self.nodes, self.page)
    }

    /// Starts a client that fills the page with `byte`, and lets the client exit as soon as a replica is filled. After
    /// `cuts[i]` steps of the write its packets to the `i`th node with a replica are dropped. Returns the contents of
    /// the replicas.
    fn exit_cut_off(&mut self, byte: u8, cuts: &[u32]) -> Vec<Option<u8>> {
        self.claim_whole();
        let (client, replicas) = (self.client_host.id(), self.contents());
        self.begin_page(byte);
        for step in 0..=cuts.iter().copied().max().unwrap_or(0) {
            for ((_, node), _) in replicas.iter().zip(cuts).filter(|(_, cut)| **cut == step) {
                self.world.cut(client, self.hosts[*node].id());
            }
            assert!(self.world.step());
        }
        let (nodes, page) = (self.nodes.clone(), self.page);
        let is_filled = |(content, _): &(Option<u8>, usize)| *content == Some(byte);
        // Less than the term of its leases.
        self.world.run_while_not(TERM / 2, |world| contents(world, &nodes, page).iter().any(is_filled));
        self.client_exits();
        self.world.run_for(LOOKS);
        self.world.heal();
        self.contents().into_iter().map(|(content, _)| content).collect()
    }

    fn check_all(&mut self) {
        self.until("requests are over", ClientProgram::is_done);
        self.client().unwrap().to_read = PAGES;
        self.until("all pages are read", ClientProgram::is_done);
    }
}

/// Returns the contents of the replicas of a page, sorted; see [`Run::contents`].
fn contents(world: &World, nodes: &[Option<TaskId>], page: usize) -> Vec<(Option<u8>, usize)> {
    let content_at = |task: TaskId| {
        let mut bytes = [0; PAGE_BYTES];
        world.inspect::<NodeProgram>(task)?.node.granted().next()?.1.copy_out(page * PAGE_BYTES, &mut bytes);
        Some(bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0]))
    };
    let mut found: Vec<_> =
        (0..).zip(nodes).filter_map(|(node, task)| Some((content_at((*task)?)?, node))).collect();
    found.sort_unstable();
    found
}

/// The world of this seed is not lossy, and no node is a witness.
const NO_FAULTS_SEED: u64 = 1;

/// Returns the arguments of [`Run::exit_cut_off`] with which a page that was filled with 1 has `wanted` afterwards: the
/// last of these replicas is filled with 2, and at most the first is torn.
fn cuts_for(wanted: &[Option<u8>], new_run: impl Fn() -> Run) -> Vec<u32> {
    let others = wanted.len() - 1;
    let mut old = vec![Some(1); others];
    old.push(Some(2));
    let leaves = |cuts: &[u32], wanted: &[Option<u8>]| new_run().exit_cut_off(2, cuts) == wanted;
    let mut run = new_run();
    run.claim_whole();
    run.begin_page(2);
    let mut first_store = 0;
    while run.contents().iter().all(|(content, _)| *content == Some(1)) {
        assert!(run.world.step());
        first_store += 1;
    }
    let mut earlier = (0..first_store).rev().map(|cut| vec![cut; others]);
    let mut cuts = earlier.find(|cuts| leaves(cuts, &old)).unwrap();
    while !leaves(&cuts, wanted) {
        assert!(cuts[0] < first_store, "no step leaves {wanted:?}");
        cuts[0] += 1;
    }
    cuts
}

const fn is_lossy(seed: u64) -> bool {
    seed.is_multiple_of(8)
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("FARCALL_SIM_FIRST").unwrap_or(1);
    first..first + number("FARCALL_SIM_SEEDS").unwrap_or(count)
}

#[test]
fn survives_one_node_and_all_clients_at_any_step() {
    survives_all(Run::new, seeds(60));
}

#[test]
fn survives_all_clients_between_the_packets_of_a_page() {
    survives_all(Run::with_small_packets, seeds(60));
}

/// Worlds that lost a page: without the redo log, and when a claim replaced the log of a node with an older view.
#[test]
fn survives_the_worlds_that_lost_a_page() {
    survives_all(Run::with_small_packets, [300_082, 504_360]);
}

fn survives_all(new_run: impl Fn(u64) -> Run, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = new_run(seed);
        run.claim(ClaimFaults::default()).unwrap();
        run.client().unwrap().to_make = 40;
        for _ in 0..4 {
            run.until("requests are over", ClientProgram::is_done);
            run.until_whole();
            run.faulty = run.below(NODES as u64) as usize;
            for _ in 0..1 + run.below(8) {
                run.something();
            }
            // The client and the node exit at about the same time, in any order.
            if run.below(2) == 0 {
                run.client_exits();
                run.exit(run.faulty);
            }
            while run.client.is_none() {
                run.claim_with_faults();
            }
            // The state of the faulty node is not needed.
            run.check_all();
            if run.nodes[run.faulty].is_none() {
                run.start(run.faulty);
            }
        }
        run.until_whole();
        run.check_all();
        run.client_exits();
        run.claim(ClaimFaults::default()).unwrap();
        run.check_all();
    }
}

/// A member that was unreachable for longer than the client waits for it, and whose lease did not expire in that time.
#[test]
fn readmits_an_unreachable_member() {
    // In lossy worlds requests need more time than this timeout.
    for seed in seeds(8).filter(|seed| !is_lossy(*seed)) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = Run::new(seed);
        // Shorter than a lease term: the session is closed before the lease expires.
        run.patience = TERM / 10;
        run.claim(ClaimFaults::default()).unwrap();
        run.client().unwrap().to_make = 40;
        run.until("requests are over", ClientProgram::is_done);
        run.until_whole();
        let (client, node) = (run.client_host.id(), run.hosts[1].id());
        run.world.partition(client, node);
        let now = run.world.now();
        run.client().unwrap().scrub(now);
        let is_down = |client: &ClientProgram| client.engine.status().nodes[1].link == LinkStatus::Down;
        run.until("the node is missed", is_down);
        run.until("the volume goes on without it", |client| client.engine.status().nodes[1].replicas == 0);
        run.world.run_for(LOOKS);
        run.world.heal();
        run.until("the node is reached", |client| !is_down(client));
        run.until_whole();
        // One of three members may exit.
        run.exit(0);
        run.world.run_for(2 * TERM);
        run.client().unwrap().metadata_writes_to_make = 3;
        run.until("notes are acknowledged", ClientProgram::is_done);
    }
}

/// A client exits when one of two replicas of a page has its write. The next client replays that, writes the page as
/// well, and exits at any step of that together with a node.
#[test]
fn equalizes_replicas_before_a_write_intent() {
    let new_run = || {
        let mut run = Run::new(NO_FAULTS_SEED);
        run.write_page(1);
        run
    };
    let wanted = [Some(1), Some(2)];
    let cuts = cuts_for(&wanted, new_run);
    let mut seen = BTreeSet::new();
    for is_newer_lost in [true, false] {
        for steps in 0.. {
            let mut run = new_run();
            assert_eq!(run.exit_cut_off(2, &cuts), wanted);
            run.faulty = run.contents()[usize::from(is_newer_lost)].1;

            run.claim(ClaimFaults::default()).unwrap();
            let has_ended = run.exit_after(|run| run.begin_page(3), steps);
            let found: Option<Vec<u8>> = run.contents().into_iter().map(|(content, _)| content).collect();
            seen.extend(found);
            run.exit(run.faulty);
            run.claim(ClaimFaults::default()).unwrap();
            run.check_all();
            if has_ended {
                break;
            }
        }
    }
    assert_eq!(seen, [[1, 2], [2, 2], [3, 3]].map(Vec::from).into());
}

/// A client exits when one of three replicas of a page has its write; another one is as before, and the third is as
/// before or torn. The next client repairs both, and exits at any step of that together with the node of the first.
#[test]
fn survives_node_and_client_during_a_repair() {
    let new_run = || {
        // A replica is torn if the client exits between two packets of it.
        let mut run = Run::with_few_packets(NO_FAULTS_SEED);
        // Clients read the last replica of this page first.
        (run.replicas, run.page) = (NODES, NODES - 1);
        run.write_page(1);
        run
    };
    let repairs: [fn(&mut Run); 3] = [
        |run| {
            let (page, now) = (run.page, run.world.now());
            let client = run.client().unwrap();
            let request = client.load.read_page(page);
            client.engine.submit(request, now).unwrap();
        },
        |run| {
            let now = run.world.now();
            run.client().unwrap().scrub(now);
        },
        |run| run.begin_page(3),
    ];
    let wanted = [Some(1), None].map(|third| [third, Some(1), Some(2)]);
    let starts = wanted.map(|wanted| (wanted, cuts_for(&wanted, new_run)));
    for (repair, (wanted, cuts)) in
        repairs.into_iter().flat_map(|repair| starts.iter().map(move |start| (repair, start)))
    {
        for steps in (0..).step_by(7) {
            let mut run = new_run();
            assert_eq!(run.exit_cut_off(2, cuts), wanted);
            run.faulty = run.contents()[NODES - 1].1;

            let has_ended = run.exit_during(repair, steps);
            run.exit(run.faulty);
            run.claim(ClaimFaults::default()).unwrap();
            run.check_all();
            if has_ended {
                break;
            }
        }
    }
}

/// A client exits at any step of a write of one page or of adjacent pages, each of several packets. The node that has a
/// replica exits with it, unless it has the only one, and so does the next client at any step.
#[test]
fn restores_torn_pages_from_the_redo_log() {
    let writes: [fn(&mut Run); 2] = [
        |run| run.begin_page(2),
        |run| {
            let now = run.world.now();
            let work = Work::Write(vec![2; 3 * PAGE_BYTES].into());
            run.client().unwrap().overwrite(Request { token: TEST_TOKEN, offset: 0, work }, now);
        },
    ];
    let mut torn = 0;
    for (write, faulty) in
        writes.into_iter().flat_map(|write| [(write, Some(0)), (write, Some(1)), (write, None)])
    {
        for steps in (0..).step_by(7) {
            let mut run = Run::with_few_packets(NO_FAULTS_SEED);
            run.replicas = if faulty.is_some() { 2 } else { 1 };
            run.write_page(1);
            let has_ended = run.exit_during(write, steps);
            let found = run.contents();
            torn += u32::from(found.iter().any(|(content, _)| content.is_none()));
            if let Some(faulty) = faulty {
                run.exit(found[faulty].1);
            }
            // The next client exits as well, while it replays the log.
            run.claim(ClaimFaults::default()).unwrap();
            for _ in 0..steps / 2 {
                run.world.step();
            }
            run.client_exits();
            run.claim(ClaimFaults::default()).unwrap();
            run.check_all();
            if has_ended {
                break;
            }
        }
    }
    println!("{torn} pages were torn");
    assert!(torn > 10, "{torn} pages were torn");
}

/// Neither a replica nor the redo log has the content of a page, and a client that writes the complete page exits at
/// any step.
#[test]
fn stores_nothing_but_the_write_to_a_page_that_is_lost() {
    let mut seen = BTreeSet::new();
    for steps in 0.. {
        let mut run = Run::new(NO_FAULTS_SEED);
        run.write_page(1);
        // Another page is written to the same slot of the log.
        run.page = 1;
        run.write_page(2);
        run.page = 0;
        for task in run.nodes.clone().into_iter().flatten() {
            let program = run.world.endpoint::<NodeProgram>(task).unwrap();
            program.node.granted().for_each(|(_, slab)| slab.copy_in(0, &[9; PAGE_BYTES]));
        }
        let has_ended = run.exit_during(|run| run.begin_page(3), steps);
        let is_stored = run.contents().iter().any(|(content, _)| *content == Some(3));
        run.claim(ClaimFaults::default()).unwrap();
        // The load checks the page if the read succeeds.
        run.client().unwrap().to_read = 1;
        let task = run.client.unwrap();
        let has_read = |world: &mut World| world.inspect::<ClientProgram>(task).unwrap().is_done();
        assert!(run.world.run_while_not(LOST_AFTER, has_read));
        let failed = std::mem::take(&mut run.client().unwrap().load.failed);
        let is_lost = failed == [IoError::Lost { page: 0 }];
        assert!(failed.is_empty() || (is_lost && !is_stored), "after {steps} steps: {failed:?}");
        seen.insert((is_lost, is_stored));
        if has_ended {
            break;
        }
    }
    // A packet of the write may arrive after its client has exited.
    assert_eq!(seen, [(true, false), (false, false), (false, true)].into());
}
