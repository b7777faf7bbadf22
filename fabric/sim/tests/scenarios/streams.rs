//! Byte streams under faults: the bytes read are the bytes written, in order, and every stream ends: completely if
//! there was no fault, otherwise with an error at both ends.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use farcall_sim::{Host, Purpose, Stream, TaskId, World};

use super::{HAPPENED, chaos};
use crate::support::rpc::nic;
use crate::support::stream::{End, Ended, Ends, Server, client, config};

struct Run {
    world: World,
    random: Stream,
    server_host: Host,
    server: TaskId,
    clients: Vec<(Host, TaskId)>,
    next_client: u64,
    lengths: Ends,
    /// Whether a fault occurred that may break a connection.
    is_hurt: bool,
}

impl Run {
    fn spawn_server(&mut self) {
        let nic = nic(&self.server_host, self.random.next_u64());
        let random = self.world.random(1_000_000 + self.random.below(1_000_000) as u32);
        let server = Server::new(&self.server_host, nic, random, &self.lengths);
        let waiting = chaos::waiting(&mut self.random);
        self.server = self.world.spawn(&self.server_host, waiting, server);
    }

    fn spawn_client(&mut self, host: &Host) {
        let number = self.next_client;
        self.next_client += 1;
        let nic = nic(host, self.random.next_u64());
        let config = config(&mut self.random);
        let random = self.world.random(number as u32);
        let end = client(host, &nic, self.server_host.id(), number, config, random, &self.lengths);
        let waiting = chaos::waiting(&mut self.random);
        let task = self.world.spawn(host, waiting, end);
        self.clients.push((host.clone(), task));
    }

    fn disturb(&mut self) {
        let mut nodes = vec![self.server_host.id()];
        nodes.extend(self.clients.iter().map(|(host, _)| host.id()));
        match self.random.below(12) {
            0 => {
                self.is_hurt = true;
                self.world.kill(self.server);
                self.world.run_for(Duration::from_micros(self.random.between(0, 30_000)));
                self.spawn_server();
            }
            1 | 2 => {
                let at = self.random.below(self.clients.len() as u64) as usize;
                let (host, task) = self.clients.remove(at);
                self.world.kill(task);
                self.spawn_client(&host);
            }
            3..=5 => {
                self.is_hurt = true;
                chaos::disturb_network(&mut self.world, &mut self.random, &nodes);
            }
            6 => self.spawn_client(&self.clients[0].0.clone()),
            _ => {}
        }
    }

    /// Returns all existing ends of streams.
    fn ends(&self) -> impl Iterator<Item = &End> {
        let server: &Server = self.world.inspect(self.server).expect("a server that runs");
        self.clients.iter().map(|(_, task)| self.end(*task)).chain(&server.sessions)
    }

    fn is_done(&self) -> bool {
        self.ends().all(End::is_done)
    }

    fn end(&self, task: TaskId) -> &End {
        self.world.inspect(task).expect("a client that runs")
    }

    fn run(mut self) -> u64 {
        for _ in 0..self.random.below(10) {
            self.world.run_for(Duration::from_nanos(self.random.between(1_000, 300_000)));
            self.disturb();
        }
        chaos::calm(&mut self.world);
        let until = self.world.now() + Duration::from_secs(60);
        while !self.is_done() && self.world.now() < until {
            self.world.run_for(Duration::from_micros(100));
        }
        if !self.is_done() {
            let all: Vec<String> = self.ends().map(End::describe).collect();
            panic!("streams without an end:\n{}", all.join("\n"));
        }
        for (_, task) in &self.clients {
            let end = self.end(*task);
            let whole = (Some(Ended::Whole), Some(Ended::Whole));
            assert!(
                self.is_hurt || (end.ended.clone(), end.wrote.clone()) == whole,
                "nothing happened to a stream that broke: {:?}, {:?}",
                end.ended,
                end.wrote
            );
        }
        for end in self.ends() {
            HAPPENED.streams.fetch_add(u64::from(end.ended == Some(Ended::Whole)), Relaxed);
            HAPPENED.broken.fetch_add(u64::from(end.ended != Some(Ended::Whole)), Relaxed);
            HAPPENED.wishes.fetch_add(end.counters.wishes, Relaxed);
            HAPPENED.stalls.fetch_add(end.counters.stalls, Relaxed);
        }
        let tasks: Vec<TaskId> = self.clients.iter().map(|(_, task)| *task).chain([self.server]).collect();
        tasks.into_iter().for_each(|task| self.world.kill(task));
        assert_eq!(self.world.objects(), [0; 4], "something is left of dead programs");
        self.world.trace_hash()
    }
}

pub fn run(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(5_000));
    let mut config = chaos::config(seed, &mut random);
    let is_well = random.chance_ppm(300_000);
    if is_well {
        config.faults = farcall_sim::Faults::NONE;
    }
    let mut world = World::new(config);
    let server_host = world.add_node();
    let hosts: Vec<Host> = (0..random.between(1, 3)).map(|_| world.add_node()).collect();
    let mut run = Run {
        world,
        random,
        server_host,
        server: TaskId::NONE,
        clients: Vec::new(),
        next_client: 1,
        lengths: Ends::default(),
        is_hurt: !is_well,
    };
    run.spawn_server();
    hosts.iter().for_each(|host| run.spawn_client(host));
    run.run()
}
