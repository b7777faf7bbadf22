//! Raw queue pairs of all transports under faults: completions exactly once and in order, memory exact to the byte, no
//! atomic executed twice; unreliable messages arrive completely or not at all; receives are consumed once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farcall_sim::check::DeliveryGuarantee;
use farcall_sim::{Faults, Host, Purpose, Stream, World};
use farcall_verbs::QpType;

use super::chaos;
use crate::support::traffic::Traffic;

/// Number of messages received over RC, over UC and as datagrams, in all runs.
static RECEIVED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Returns the numbers of messages received over RC, over UC and as datagrams so far.
pub fn received() -> [u64; 3] {
    [0, 1, 2].map(|kind| RECEIVED[kind].load(Ordering::Relaxed))
}

/// Faults that a world's network does not have, which permits stronger checks of datagrams.
#[derive(Clone, Copy)]
struct Never {
    duplicate: bool,
    reorder: bool,
}

impl Never {
    fn keep(self, faults: Faults) -> Faults {
        Faults {
            duplicate_ppm: if self.duplicate { 0 } else { faults.duplicate_ppm },
            reorder_ppm: if self.reorder { 0 } else { faults.reorder_ppm },
            ..faults
        }
    }

    fn datagrams(self) -> DeliveryGuarantee {
        match (self.duplicate, self.reorder) {
            (true, true) => DeliveryGuarantee::InOrder,
            (true, false) => DeliveryGuarantee::Datagrams { copies_max: 1 },
            (false, _) => DeliveryGuarantee::Datagrams { copies_max: 2 },
        }
    }
}

fn disturb(traffic: &mut Traffic, never: Never) {
    if traffic.random.chance_ppm(150_000) {
        let node = traffic.random.below(traffic.nodes.len() as u64) as usize;
        // Shorter and longer than the retries of a connection.
        let away = Duration::from_micros(traffic.random.between(1, 30_000));
        traffic.kill(node, away);
    } else {
        let nodes: Vec<_> = traffic.hosts.iter().map(Host::id).collect();
        chaos::disturb_network(&mut traffic.world, &mut traffic.random, &nodes);
        let faults = never.keep(traffic.world.faults());
        traffic.world.set_faults(faults);
    }
    traffic.poll();
}

fn turn(traffic: &mut Traffic) {
    let at = traffic.random.below(traffic.members.len() as u64) as usize;
    match traffic.random.below(100) {
        0 => traffic.members[at].fail(),
        1..=4 => traffic.arm(at),
        5..=30 => {
            let most = traffic.random.below(12) as usize;
            traffic.post_receives(at, most);
        }
        _ => {
            for _ in 0..traffic.random.between(1, 5) {
                traffic.act(at);
            }
        }
    }
    let most_ns = if traffic.random.chance_ppm(100_000) { 100_000 } else { 3_000 };
    let pause = Duration::from_nanos(traffic.random.below(most_ns));
    traffic.world.run_for(pause);
    traffic.poll();
}

fn run(seed: u64, has_shared: bool, connections: &[QpType]) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let mut config = chaos::config(seed, &mut random);
    let never = Never { duplicate: random.chance_ppm(600_000), reorder: random.chance_ppm(500_000) };
    config.faults = never.keep(config.faults);
    let mtu = config.params.mtu;
    let nodes = random.between(2, 3) as usize;
    let world = World::new(config);
    let mut traffic = Traffic::new(world, random, (nodes, has_shared), (mtu, never.datagrams()));
    for _ in 0..traffic.random.between(1, 4) {
        let kind = connections[traffic.random.below(connections.len() as u64) as usize];
        let (a, b) = (traffic.random.below(nodes as u64), traffic.random.below(nodes as u64));
        traffic.add_connection(kind, (a as usize, b as usize));
    }
    // A single datagram queue pair has no peer.
    for _ in 0..[0, 2, 3, 4][traffic.random.below(4) as usize] {
        let node = traffic.random.below(nodes as u64) as usize;
        traffic.add_datagrams(node);
    }
    for _ in 0..traffic.random.between(50, 250) {
        turn(&mut traffic);
        if traffic.random.chance_ppm(30_000) {
            disturb(&mut traffic, never);
        }
    }
    chaos::calm(&mut traffic.world);
    traffic.finish();
    for (total, here) in RECEIVED.iter().zip(traffic.received_counts()) {
        total.fetch_add(here, Ordering::Relaxed);
    }
    traffic.drain_shared();
    traffic.world.trace_hash()
}

/// Reliable connections with all operations, each queue pair with its own receives.
pub fn reliable(seed: u64) -> u64 {
    run(seed, false, &[QpType::Rc])
}

/// Unreliable connections and datagrams, each queue pair with its own receives.
pub fn unreliable(seed: u64) -> u64 {
    run(seed, false, &[QpType::Uc])
}

/// Queue pairs of all transports use one shared receive queue per node.
pub fn shared(seed: u64) -> u64 {
    run(seed, true, &[QpType::Rc, QpType::Rc, QpType::Uc])
}
