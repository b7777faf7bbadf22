//! Random worlds: network, constants and faults of a seed.

use std::time::Duration;

use farcall_sim::{Config, Faults, NodeId, Stream, WaitStrategy, World};
use farcall_verbs::Mtu;

/// Returns the configuration of a world for a seed.
pub fn config(seed: u64, random: &mut Stream) -> Config {
    let mut config = Config::new(seed);
    config.faults = faults(random);
    config.params.placement_in_order = random.chance_ppm(500_000);
    config.params.mtu = [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096][random.below(3) as usize];
    config.params.pieces_max = random.between(1, 6);
    config.params.piece_gap_ns = [0, 50, 500, 3_000][random.below(4) as usize];
    config.params.wake_ns = [0, 500, 4_000][random.below(3) as usize];
    config
}

/// Returns a network between good and very bad.
pub fn faults(random: &mut Stream) -> Faults {
    let mut share = |most: u64| if random.chance_ppm(500_000) { random.below(most) as u32 } else { 0 };
    let (loss_ppm, duplicate_ppm, reorder_ppm) = (share(50_000), share(50_000), share(50_000));
    let delay_min_ns = random.between(100, 5_000);
    Faults {
        loss_ppm,
        duplicate_ppm,
        reorder_ppm,
        // Based on a number that is drawn anyway, so that the worlds of earlier seeds do not change.
        mark_ppm: if delay_min_ns.is_multiple_of(3) { 50_000 } else { 0 },
        delay_min_ns,
        delay_max_ns: delay_min_ns + random.below(5_000),
        detour_max_ns: random.between(1_000, 100_000),
    }
}

pub fn waiting(random: &mut Stream) -> WaitStrategy {
    if random.chance_ppm(500_000) { WaitStrategy::Poll } else { WaitStrategy::Event }
}

/// Applies a random fault to the network; the scenarios apply faults to programs.
pub fn disturb_network(world: &mut World, random: &mut Stream, nodes: &[NodeId]) {
    match random.below(4) {
        0 => world.set_faults(faults(random)),
        1 => world.set_faults(Faults::NONE),
        2 => world.heal(),
        _ => {
            let (a, b) = (random.below(nodes.len() as u64), random.below(nodes.len() as u64));
            let (a, b) = (nodes[a as usize], nodes[b as usize]);
            if random.chance_ppm(500_000) {
                world.partition(a, b);
            } else {
                world.cut(a, b);
            }
            // Often shorter than the retries of a connection, sometimes longer.
            let most_us = if random.chance_ppm(300_000) { 1_500_000 } else { 20_000 };
            world.run_for(Duration::from_micros(random.between(10, most_us)));
            world.heal();
        }
    }
}

/// Ends all faults.
pub fn calm(world: &mut World) {
    world.set_faults(Faults::NONE);
    world.heal();
}
