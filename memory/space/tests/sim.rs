//! Nodes and clients in virtual time. Every byte that is read is checked, while nodes exit, are disconnected, lose
//! their state, flip bits and drain.

mod net;
mod support;

use std::time::Duration;

use farcall_link::SplitMix64;
use farcall_memory::*;
use farcall_sim::{Config as WorldConfig, Faults, Host, NodeId, TaskId, WaitStrategy, World};
use net::{ClientProgram, NodeProgram, nic};
use support::Load;

const SLAB_BYTES: usize = 16 * PAGE_BYTES;
const PAGES: usize = 60;
const TERM: Duration = Duration::from_millis(200);

const DONATED: NodeConfig = NodeConfig {
    slab_bytes: SLAB_BYTES,
    slabs: 8,
    term: TERM,
    leases_max: 4,
    slabs_per_lease_max: 100,
    pairs_max: 4,
    volumes_max: 0,
    metadata_bytes_max: 0,
};

fn config(nodes: usize, replicas: usize) -> ClientConfig {
    ClientConfig {
        name: "client".into(),
        nodes: (0..nodes).map(|node| node.to_string()).collect(),
        nodes_max: 4,
        size_bytes: (PAGES * PAGE_BYTES) as u64,
        replicas,
        slab_bytes: SLAB_BYTES as u64,
        suspect_after: Duration::from_millis(50),
        patience: Duration::from_secs(2),
        pages_max: 1_024,
        connections: 2,
        pool_bytes: 1 << 20,
        caller_polling: false,
        scrub_pages_per_s: 64,
        spill: None,
    }
}

struct Run {
    world: World,
    hosts: Vec<Host>,
    nodes: Vec<TaskId>,
    client: TaskId,
    client_host: Host,
    lives: u64,
}

impl Run {
    fn new(seed: u64, nodes: usize, replicas: usize) -> Self {
        Self::knowing(nodes, seed, nodes, replicas)
    }

    /// Creates a run whose client knows only the first `known` nodes; others may join.
    fn knowing(known: usize, seed: u64, nodes: usize, replicas: usize) -> Self {
        let mut world_config = WorldConfig::new(seed);
        world_config.faults = if seed.is_multiple_of(2) { Faults::NONE } else { Faults::BAD };
        let mut world = World::new(world_config);
        let hosts: Vec<Host> = (0..nodes).map(|_| world.add_node()).collect();
        let client_host = world.add_node();
        let mut lives = seed << 32;
        let nodes = hosts
            .iter()
            .map(|host| {
                lives += 1;
                world.spawn(host, WaitStrategy::Event, NodeProgram::new(host, DONATED, lives))
            })
            .collect();
        let ids: Vec<NodeId> = hosts.iter().map(Host::id).collect();
        let engine = Engine::new(&nic(&client_host, seed), config(known, replicas)).unwrap();
        let program = ClientProgram::new(&client_host, engine, &ids, Load::new(seed, PAGES));
        let client = world.spawn(&client_host, WaitStrategy::Event, program);
        Self { world, hosts, nodes, client, client_host, lives }
    }

    fn client(&self) -> &ClientProgram {
        self.world.inspect(self.client).unwrap()
    }

    /// Issues `count` requests and runs the world until they have completed.
    fn make(&mut self, count: u64) {
        self.world.endpoint::<ClientProgram>(self.client).unwrap().to_make += count;
        self.until("requests are over", ClientProgram::is_done);
    }

    /// Reads every page.
    fn read_all(&mut self) {
        self.world.endpoint::<ClientProgram>(self.client).unwrap().to_read = PAGES;
        self.until("all pages are read", ClientProgram::is_done);
    }

    /// Scrubs all pages.
    fn scrub(&mut self) {
        let now = self.world.now();
        self.world.endpoint::<ClientProgram>(self.client).unwrap().scrub(now);
        self.until("everything was looked at", ClientProgram::is_done);
    }

    fn until(&mut self, what: &str, is_done: impl Fn(&ClientProgram) -> bool) {
        let client = self.client;
        let done = self
            .world
            .run_while_not(Duration::from_secs(100), |world| is_done(world.inspect(client).unwrap()));
        let program = self.client();
        assert!(
            done,
            "not in time: {what}; {:?}, {} under way",
            program.engine.status(),
            program.load.in_progress()
        );
    }

    fn join(&mut self, node: usize) -> bool {
        let client = self.world.endpoint::<ClientProgram>(self.client).unwrap();
        client.engine.join(&node.to_string()).unwrap()
    }

    /// Waits until all replicas that can exist are in sync.
    fn until_whole(&mut self) {
        self.until("all is in sync", |client| {
            let status = client.engine.status();
            // Extents that have lost all replicas get new ones when they are written.
            status.degraded == status.lost && status.nodes.iter().all(|node| node.link != LinkStatus::Down)
        });
    }

    /// Kills a node and restarts it as another incarnation.
    fn kill(&mut self, node: usize) {
        self.world.kill(self.nodes[node]);
    }

    fn start(&mut self, node: usize) {
        self.lives += 1;
        let program = NodeProgram::new(&self.hosts[node], DONATED, self.lives);
        self.nodes[node] = self.world.spawn(&self.hosts[node], WaitStrategy::Event, program);
    }

    /// Flips a bit of one of the client's pages in the memory of a node.
    fn flip(&mut self, node: usize, rng: &mut SplitMix64) -> bool {
        let Some(program) = self.world.inspect::<NodeProgram>(self.nodes[node]) else { return false };
        let slabs: Vec<_> = program.node.granted().collect();
        if slabs.is_empty() {
            return false;
        }
        let (_, slab) = slabs[rng.below(slabs.len() as u64) as usize];
        let at = rng.below(slab.len_bytes() as u64) as usize;
        let mut byte = [0];
        slab.copy_out(at, &mut byte);
        slab.copy_in(at, &[byte[0] ^ 1 << rng.below(8)]);
        true
    }

    fn drain(&mut self, node: usize, is_wanted: bool) {
        self.request_drain(node, &wire::Request::Drain { is_wanted });
    }

    fn request_drain(&mut self, node: usize, request: &wire::Request) {
        let (now, request) = (self.world.now(), request.to_bytes());
        self.world.endpoint::<NodeProgram>(self.nodes[node]).unwrap().node.handle(&request, now).unwrap();
    }

    /// Waits until the client has returned all slabs of a node, or the lease has expired that the client lost when it
    /// was disconnected.
    fn until_nothing_is_granted(&mut self, node: usize) {
        let task = self.nodes[node];
        let done = self.world.run_while_not(Duration::from_secs(100), |world| {
            let room = world.inspect::<NodeProgram>(task).unwrap().node.status(world.now()).room;
            room.free == room.slabs
        });
        assert!(done, "a node did not get its memory back");
    }
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("FARCALL_SIM_FIRST").unwrap_or(1);
    first..first + number("FARCALL_SIM_SEEDS").unwrap_or(count)
}

#[test]
fn matches_plain_memory() {
    for seed in seeds(8) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = Run::new(seed, 3, 1 + seed as usize % 3);
        run.make(300);
        run.read_all();
        let client = run.client();
        assert_eq!(client.load.failed, []);
        let status = client.engine.status();
        assert_eq!(status.degraded, 0);
        assert!(status.counts.pages_together > 0, "whole pages go together");
    }
}

/// One fault at a time, which is repaired before the next: nothing is lost, and no request fails.
#[test]
fn loses_nothing_with_one_failure_at_a_time() {
    let (seeds, mut broken) = (seeds(8), 0);
    for seed in seeds.clone() {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut rng = SplitMix64::new(seed);
        let mut run = Run::new(seed, 4, 2);
        run.make(100);
        for _ in 0..6 {
            run.until_whole();
            let node = rng.below(4) as usize;
            match rng.below(4) {
                0 => {
                    run.kill(node);
                    run.make(60);
                    run.start(node);
                }
                1 => {
                    let (peer, own) = (run.hosts[node].id(), run.client_host.id());
                    run.world.partition(peer, own);
                    run.make(60);
                    run.world.heal();
                }
                2 => {
                    for _ in 0..10 {
                        run.flip(node, &mut rng);
                    }
                    run.make(60);
                    run.scrub();
                }
                _ => {
                    run.drain(node, true);
                    run.make(60);
                    run.until("the node has its memory back", |client| {
                        client.engine.status().nodes[node].replicas == 0
                    });
                    run.until_nothing_is_granted(node);
                    run.drain(node, false);
                }
            }
            run.make(40);
        }
        run.until_whole();
        run.read_all();
        assert_eq!(run.client().load.failed, []);
        broken += run.client().engine.status().counts.runs_broken;
    }
    println!("{broken} runs of pages were broken");
    assert!(broken > 0 || seeds.count() < 8, "failures met pages that went together");
}

/// Nodes join under load. They get the replicas that are missing, and replace nodes that leave.
#[test]
fn uses_nodes_that_join_later() {
    for seed in seeds(8) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = Run::knowing(1, seed, 3, 2);
        run.make(100);
        assert!(run.client().engine.status().degraded > 0, "one node cannot have two replicas");
        run.world.endpoint::<ClientProgram>(run.client).unwrap().to_make += 60;
        assert!(run.join(1) && !run.join(1), "once");
        run.until("requests are over", ClientProgram::is_done);
        run.until("the new node has replicas", |client| client.engine.status().degraded == 0);
        run.kill(0);
        run.make(60);
        assert!(run.join(2));
        run.until("the second new node has replicas", |client| client.engine.status().degraded == 0);
        run.start(0);
        run.drain(1, true);
        run.make(60);
        run.until_nothing_is_granted(1);
        run.read_all();
        assert_eq!(run.client().load.failed, []);
    }
}

/// A draining node is left only when other nodes have the pages. A node that has exited unnoticed does not count.
#[test]
fn keeps_pages_of_a_crashed_node_while_draining() {
    for seed in seeds(8) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut run = Run::new(seed, 2, 2);
        run.make(100);
        run.until_whole();
        run.kill(0);
        run.request_drain(1, &wire::Request::DrainForced);
        run.world.run_for(Duration::from_millis(500));
        run.read_all();
        run.start(0);
        run.until_nothing_is_granted(1);
        run.read_all();
        assert_eq!(run.client().load.failed, []);
    }
}

/// Any fault may occur at any time. All bytes that are read are right nevertheless, each request completes, and in the
/// end all pages can be written and read.
#[test]
fn reads_no_wrong_byte_under_faults() {
    for seed in seeds(12) {
        println!("FARCALL_SIM_FIRST={seed}");
        let mut rng = SplitMix64::new(seed);
        let mut run = Run::new(seed, 3, 2);
        let mut is_dead = [false; 3];
        for _ in 0..12 {
            run.world.endpoint::<ClientProgram>(run.client).unwrap().to_make += 40;
            run.world.run_for(Duration::from_micros(rng.below(300_000)));
            let node = rng.below(3) as usize;
            match rng.below(6) {
                0 | 1 if is_dead[node] => {
                    run.start(node);
                    is_dead[node] = false;
                }
                0 | 1 => {
                    run.kill(node);
                    is_dead[node] = true;
                }
                2 => run.world.partition(run.hosts[node].id(), run.client_host.id()),
                3 => run.world.heal(),
                4 => drop(run.flip(node, &mut rng)),
                _ if !is_dead[node] => run.drain(node, rng.below(2) == 0),
                _ => {}
            }
        }
        run.world.heal();
        for (node, is_dead) in is_dead.into_iter().enumerate() {
            if is_dead {
                run.start(node);
            }
            run.drain(node, false);
        }
        run.until("requests are over", ClientProgram::is_done);
        run.until_whole();
        let failed = run.client().load.failed.len();
        // Pages that are lost stay lost until they are written.
        run.read_all();
        println!("{failed} requests failed; {:?}", run.client().engine.status().counts);
        let whole = |page: usize| Request {
            token: u64::MAX - page as u64,
            offset: (page * PAGE_BYTES) as u64,
            work: Work::Write(vec![page as u8; PAGE_BYTES].into()),
        };
        let now = run.world.now();
        let client = run.world.endpoint::<ClientProgram>(run.client).unwrap();
        (0..PAGES).for_each(|page| client.overwrite(whole(page), now));
        run.until("all is written", ClientProgram::is_done);
        run.until_whole();
        assert_eq!(run.client().engine.status().lost, 0);
        let failed = run.client().load.failed.len();
        run.read_all();
        assert_eq!(run.client().load.failed.len(), failed, "all that was written anew can be read");
    }
}

/// The same seed yields the same run.
#[test]
fn a_seed_repeats_to_the_bit() {
    let hash = |seed| {
        let mut run = Run::new(seed, 3, 2);
        run.make(100);
        run.kill(1);
        run.make(100);
        run.world.trace_hash()
    };
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}
