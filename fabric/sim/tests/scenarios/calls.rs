//! Remote calls under faults: every call completes, none is executed twice, and each result belongs to its call.

use std::time::Duration;

use farcall_link::{BatchConfig, BatchSizing, Batching, Plan};
use farcall_rpc::{CallerConfig, ResponderConfig};
use farcall_sim::{Host, Purpose, Stream, TaskId, WaitStrategy, World};

use super::{chaos, plan, plan_of_seed};
use crate::support::calls::{Calls, Echo, Executions, Later, check_calls};
use crate::support::rpc::{ClientProgram, ServerProgram, Workload, nic};

const CALLS: u32 = 60;

struct Run {
    plan: Plan,
    world: World,
    random: Stream,
    server_host: Host,
    server: TaskId,
    /// Whether it polls, and thus notices all changes itself. The world skips iterations of endpoints whose node has
    /// not changed.
    server_polls: bool,
    incarnation: u64,
    clients: Vec<(Host, u32, TaskId)>,
    next_client: u32,
    executions: Executions,
    later: Later,
    /// Whether the clients send batches.
    batches: bool,
}

impl Run {
    fn spawn_server(&mut self) {
        self.incarnation += 1;
        let (executions, later) = (self.executions.clone(), self.later.clone());
        let echo = Echo { host: self.server_host.clone(), executions, later };
        let nic = nic(&self.server_host, self.random.next_u64());
        let config = ResponderConfig::default();
        let server = ServerProgram::new(&self.server_host, nic, config, self.incarnation, echo);
        let waiting = chaos::waiting(&mut self.random);
        self.server_polls = waiting == WaitStrategy::Poll;
        self.server = self.world.spawn(&self.server_host, waiting, server);
    }

    fn plan(&mut self) -> Plan {
        match self.batches {
            true => Plan { batching: Batching::Calls(batch(&mut self.random)), ..self.plan },
            false => self.plan,
        }
    }

    fn spawn_client(&mut self, host: Host) {
        let number = self.next_client;
        self.next_client += 1;
        let waiting = chaos::waiting(&mut self.random);
        let workload = Calls::new(number, self.world.random(number), CALLS);
        let config = CallerConfig::default()
            .notify(waiting == WaitStrategy::Event && self.random.chance_ppm(500_000))
            .checksum(self.random.chance_ppm(300_000))
            .plan(self.plan());
        let seed = self.random.next_u64();
        let client = ClientProgram::new(&host, self.server_host.id(), config, seed, workload);
        let task = self.world.spawn(&host, waiting, client);
        self.clients.push((host, number, task));
    }

    /// Completes a deferred call like another thread of the server's process, which wakes the server if it sleeps.
    fn settle(&mut self) {
        self.later.settle(&mut self.random);
        let server = self.world.inspect::<ServerProgram<Echo>>(self.server);
        if server.is_some_and(|server| self.server_polls || server.is_woken_by_its_process()) {
            let _ = self.world.endpoint::<ServerProgram<Echo>>(self.server);
        }
    }

    fn disturb(&mut self) {
        let nodes: Vec<_> = [self.server_host.id()]
            .into_iter()
            .chain(self.clients.iter().map(|(host, ..)| host.id()))
            .collect();
        match self.random.below(20) {
            0 => {
                self.world.kill(self.server);
                let pause = Duration::from_micros(self.random.between(0, 30_000));
                self.world.run_for(pause);
                self.spawn_server();
            }
            1 => {
                self.world.crash(self.server_host.id());
                let pause = Duration::from_micros(self.random.between(0, 800_000));
                self.world.run_for(pause);
                self.world.restart(self.server_host.id());
                self.spawn_server();
            }
            2..=9 => {
                let at = self.random.below(self.clients.len() as u64) as usize;
                let task = self.clients[at].2;
                self.world.endpoint::<ClientProgram<Calls>>(task).expect("a client that runs").hang_up();
            }
            10 => {
                let at = self.random.below(self.clients.len() as u64) as usize;
                let (host, _, task) = self.clients.remove(at);
                self.world.kill(task);
                self.spawn_client(host);
            }
            _ => chaos::disturb_network(&mut self.world, &mut self.random, &nodes),
        }
    }

    fn program(&self, task: TaskId) -> &ClientProgram<Calls> {
        self.world.inspect(task).expect("a client that runs")
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|(.., task)| Workload::is_done(&self.program(*task).workload))
    }

    fn run(mut self) -> u64 {
        let disturbances = self.random.below(12);
        for _ in 0..disturbances {
            let pause = Duration::from_nanos(self.random.between(1_000, 200_000));
            self.world.run_for(pause);
            self.settle();
            if self.is_done() {
                break;
            }
            self.disturb();
        }
        chaos::calm(&mut self.world);
        let until = self.world.now() + Duration::from_secs(60);
        while !self.is_done() && self.world.now() < until {
            self.world.run_for(Duration::from_micros(100));
            self.settle();
        }
        for (_, number, task) in &self.clients {
            let program = self.program(*task);
            let workload = &program.workload;
            assert!(
                Workload::is_done(workload),
                "client {number} has {} of {CALLS} calls ended; {:?}, {:?}",
                workload.ended.len(),
                program.caller.broken(),
                program.caller.counters()
            );
            check_calls(workload, &self.executions);
            super::note(self.plan, program.caller.counters());
        }
        let executions = self.executions.borrow();
        let twice = executions.iter().find(|(_, times)| **times > 1);
        assert!(twice.is_none(), "a call of a dead client was executed twice: {twice:?}");
        let tasks: Vec<TaskId> = self.clients.iter().map(|(.., task)| *task).chain([self.server]).collect();
        tasks.into_iter().for_each(|task| self.world.kill(task));
        assert_eq!(self.world.objects(), [0; 4], "something is left of dead programs");
        self.world.trace_hash()
    }
}

fn batch(random: &mut Stream) -> BatchConfig {
    let size = match random.below(3) {
        0 => BatchSizing::Automatic { latency_max_us: random.between(5, 500) as u32, tolerance_percent: 5 },
        _ => BatchSizing::Fixed(random.between(1, 20) as u16),
    };
    let wait_us = [0, 20, 5_000][random.below(3) as usize];
    BatchConfig::default().size(size).bytes_max(random.between(100, 4_000) as u32).wait_us(wait_us)
}

fn run_by(plan: Plan, seed: u64, random: Stream) -> u64 {
    run_with(plan, seed, random, false)
}

fn run_with(plan: Plan, seed: u64, random: Stream, batches: bool) -> u64 {
    run_all(plan, seed, random, batches, Later::default())
}

fn run_all(plan: Plan, seed: u64, mut random: Stream, batches: bool, later: Later) -> u64 {
    let mut world = World::new(chaos::config(seed, &mut random));
    let server_host = world.add_node();
    let hosts: Vec<Host> = (0..random.between(1, 3)).map(|_| world.add_node()).collect();
    // Sometimes several clients on one node.
    let clients: Vec<Host> =
        hosts.iter().flat_map(|host| vec![host.clone(); random.between(1, 2) as usize]).collect();
    let mut run = Run {
        plan,
        server: TaskId::NONE,
        server_polls: false,
        world,
        random,
        server_host,
        incarnation: 0,
        clients: Vec::new(),
        next_client: 0,
        executions: Executions::default(),
        later,
        batches,
    };
    run.spawn_server();
    clients.into_iter().for_each(|host| run.spawn_client(host));
    run.run()
}

pub fn run(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    match random.below(4) {
        0 | 1 => run_by(plan("rf-rpc"), seed, random),
        2 => run_by(plan("fetch"), seed, random),
        _ => run_by(plan("server-reply"), seed, random),
    }
}

/// The same with the presets that use SENDs: a separate scenario, so that the worlds of earlier seeds do not change.
pub fn by_sends(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    match random.below(3) {
        0 => run_by(plan("write-send"), seed, random),
        1 => run_by(plan("send-write"), seed, random),
        _ => run_by(plan("send-send"), seed, random),
    }
}

/// The same with doorbell bytes for requests.
pub fn by_bytes(seed: u64) -> u64 {
    run_by(plan("l5"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with unreliable connections, where lost messages are not reported.
pub fn over_uc(seed: u64) -> u64 {
    run_by(plan("uc-rpc"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with clients that send batches.
pub fn batched(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    match random.below(4) {
        0 => run_with(plan("rf-rpc"), seed, random, true),
        1 => run_with(plan("server-reply"), seed, random, true),
        2 => run_with(plan("send-send"), seed, random, true),
        _ => run_with(plan("uc-rpc"), seed, random, true),
    }
}

/// The same with results as datagrams: lost, duplicated, or in any order.
pub fn by_herd(seed: u64) -> u64 {
    run_by(plan("herd"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with requests as datagrams, too.
pub fn by_datagrams(seed: u64) -> u64 {
    run_by(plan("ud-rpc"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with a third of the calls deferred; sometimes in batches, or never completed.
pub fn answered_later(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let batches = random.below(4) == 0;
    let later = Later(Some(Default::default()));
    match random.below(7) {
        0 | 1 => run_all(plan("rf-rpc"), seed, random, batches, later),
        2 => run_all(plan("server-reply"), seed, random, batches, later),
        3 => run_all(plan("send-send"), seed, random, batches, later),
        4 => run_all(plan("rdma-memcached"), seed, random, batches, later),
        5 => run_all(plan("uc-rpc"), seed, random, batches, later),
        _ => run_all(plan("ud-rpc"), seed, random, batches, later),
    }
}

/// The same with a server that notifies clients of results, which they READ; sometimes in batches.
pub fn by_notices(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let batches = random.below(4) == 0;
    run_with(plan("rdma-memcached"), seed, random, batches)
}

/// The same with each preset of the table in turn; sometimes in batches.
pub fn by_any_preset(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let batches = random.below(4) == 0;
    run_with(plan_of_seed(seed), seed, random, batches)
}
