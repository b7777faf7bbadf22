//! Raw queue pairs under faults: completions exactly once and in order, memory to the byte, no atomic executed twice.

use std::time::Duration;

use farcall_sim::check::Ledger;
use farcall_sim::{Host, Purpose, Stream, World};

use super::chaos;
use crate::support::pair::{NodeKit, Pair};

struct Run {
    world: World,
    random: Stream,
    hosts: Vec<Host>,
    kits: Vec<NodeKit>,
    pairs: Vec<Pair>,
    ledger: Ledger,
    accounts: u64,
}

impl Run {
    fn poll_all(&mut self) {
        for pair in &mut self.pairs {
            pair.poll(&mut self.kits, &mut self.ledger);
            if pair.has_failed() {
                pair.renew(&mut self.kits, &mut self.ledger, &mut self.accounts, &mut self.random);
            }
        }
    }

    fn turn(&mut self) {
        let at = self.random.below(self.pairs.len() as u64) as usize;
        let side = self.random.below(2) as usize;
        let pair = &mut self.pairs[at];
        match self.random.below(100) {
            0 => pair.ends[side].fail(),
            1..=20 => pair.ends[side].post_receives(&mut self.ledger, &mut self.random),
            _ => {
                for _ in 0..self.random.between(1, 5) {
                    pair.act(side, &self.kits, &mut self.ledger, &mut self.random);
                }
            }
        }
        let most_ns = if self.random.chance_ppm(100_000) { 100_000 } else { 3_000 };
        let pause = Duration::from_nanos(self.random.below(most_ns));
        self.world.run_for(pause);
        self.poll_all();
    }

    fn finish(&mut self) {
        chaos::calm(&mut self.world);
        self.poll_all();
        self.pairs.iter_mut().for_each(|pair| pair.finish(&mut self.ledger));
        let until = self.world.now() + Duration::from_secs(20);
        while self.pairs.iter().any(|pair| !pair.is_idle()) {
            assert!(self.world.now() < until, "requests neither completed nor were flushed");
            for pair in &mut self.pairs {
                pair.ends.iter_mut().for_each(|end| end.post_receives(&mut self.ledger, &mut self.random));
                pair.poll(&mut self.kits, &mut self.ledger);
                if pair.has_failed() {
                    pair.renew(&mut self.kits, &mut self.ledger, &mut self.accounts, &mut self.random);
                }
                if pair.is_idle() {
                    continue;
                }
                // A full queue had no room for the mark, or the mark went down with its connection.
                pair.finish(&mut self.ledger);
            }
            self.world.run_for(Duration::from_micros(50));
        }
        for pair in &mut self.pairs {
            pair.poll(&mut self.kits, &mut self.ledger);
            pair.check();
        }
        self.kits.iter().for_each(NodeKit::check_counter);
    }
}

pub fn run(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let config = chaos::config(seed, &mut random);
    let mtu = config.params.mtu;
    let mut world = World::new(config);
    let hosts: Vec<Host> = (0..random.between(2, 3)).map(|_| world.add_node()).collect();
    let kits: Vec<NodeKit> = hosts.iter().map(NodeKit::new).collect();
    let mut accounts = 0;
    let count = random.between(1, 4);
    let pairs = (0..count)
        .map(|_| {
            let nodes = hosts.len() as u64;
            let (a, b) = (random.below(nodes) as usize, random.below(nodes) as usize);
            Pair::new((a, b), &kits, mtu, &mut accounts, &mut random)
        })
        .collect();
    let mut run = Run { world, random, hosts, kits, pairs, ledger: Ledger::default(), accounts };
    let nodes: Vec<_> = run.hosts.iter().map(Host::id).collect();
    for _ in 0..run.random.between(50, 250) {
        run.turn();
        if run.random.chance_ppm(30_000) {
            chaos::disturb_network(&mut run.world, &mut run.random, &nodes);
            run.poll_all();
        }
    }
    run.finish();
    run.world.trace_hash()
}
