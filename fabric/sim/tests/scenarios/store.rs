//! The key-value store under faults: histories are linearizable.

use std::marker::PhantomData;
use std::time::Duration;

use farcall_kv::bypass::{BypassConfig, Scheme, Service};
use farcall_kv::{farm::Farm, pilaf::Pilaf};
use farcall_link::{Nic, Plan};
use farcall_rpc::{CallerConfig, Handler, ResponderConfig};
use farcall_sim::{Host, Purpose, Stream, TaskId, WaitStrategy, World};

use super::{chaos, plan, plan_of_seed};
use crate::support::bypass::ReadingClient;
use crate::support::rpc::{ClientProgram, ServerProgram, Workload, nic};
use crate::support::store::{SharedHistory, Store, StoreClient};

const CALLS: u32 = 40;

/// A store: its server and its clients.
trait Kind: Sized {
    type Server: Handler + 'static;
    type Client: Workload;

    fn server(&self, host: &Host, nic: &Nic, seed: u64) -> Self::Server;

    fn client(&self, host: &Host, number: u32, random: Stream, history: &SharedHistory) -> Self::Client;
}

/// The store of this workspace with calls.
struct Own;

impl Kind for Own {
    type Server = Store;
    type Client = StoreClient;

    fn server(&self, host: &Host, _: &Nic, _: u64) -> Store {
        Store::new(host.clock())
    }

    fn client(&self, _: &Host, number: u32, random: Stream, history: &SharedHistory) -> StoreClient {
        StoreClient::new(number, random, CALLS, history.clone())
    }
}

/// A store whose GETs are READs.
struct Read<S> {
    config: BypassConfig,
    scheme: PhantomData<S>,
}

impl<S: Scheme> Kind for Read<S> {
    type Server = Service<S>;
    type Client = ReadingClient<S>;

    fn server(&self, _: &Host, nic: &Nic, seed: u64) -> Service<S> {
        Service::new(nic.clone(), self.config, seed).unwrap()
    }

    fn client(&self, host: &Host, number: u32, random: Stream, history: &SharedHistory) -> ReadingClient<S> {
        ReadingClient::new(nic(host, u64::from(number)), number, random, CALLS, history.clone())
    }
}

struct Run<K> {
    plan: Plan,
    kind: K,
    world: World,
    random: Stream,
    server_host: Host,
    server: TaskId,
    incarnation: u64,
    clients: Vec<TaskId>,
    history: SharedHistory,
}

impl<K: Kind> Run<K> {
    fn spawn_server(&mut self) {
        self.incarnation += 1;
        let nic = nic(&self.server_host, self.random.next_u64());
        let store = self.kind.server(&self.server_host, &nic, self.incarnation);
        let config = ResponderConfig::default();
        let server = ServerProgram::new(&self.server_host, nic, config, self.incarnation, store);
        let waiting = chaos::waiting(&mut self.random);
        self.server = self.world.spawn(&self.server_host, waiting, server);
    }

    fn spawn_client(&mut self, host: &Host, number: u32) {
        let waiting = chaos::waiting(&mut self.random);
        let workload = self.kind.client(host, number, self.world.random(number), &self.history);
        let notify = waiting == WaitStrategy::Event && self.random.chance_ppm(500_000);
        let config = CallerConfig::default().notify(notify).plan(self.plan);
        let seed = self.random.next_u64();
        let client = ClientProgram::new(host, self.server_host.id(), config, seed, workload);
        self.clients.push(self.world.spawn(host, waiting, client));
    }

    fn disturb(&mut self, hosts: &[Host]) {
        if self.random.below(15) == 0 {
            let from = self.world.now();
            self.world.kill(self.server);
            // Versions of the next incarnation begin in another millisecond.
            let pause = Duration::from_micros(self.random.between(1_000, 30_000));
            self.world.run_for(pause);
            self.spawn_server();
            let to = self.world.now();
            self.history.borrow_mut().restarted(from, to);
            return;
        }
        if self.random.chance_ppm(400_000) {
            let at = self.random.below(self.clients.len() as u64) as usize;
            let task = self.clients[at];
            self.world.endpoint::<ClientProgram<K::Client>>(task).expect("a client").hang_up();
            return;
        }
        let nodes: Vec<_> = hosts.iter().map(Host::id).chain([self.server_host.id()]).collect();
        chaos::disturb_network(&mut self.world, &mut self.random, &nodes);
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|task| {
            let program: &ClientProgram<K::Client> = self.world.inspect(*task).expect("a client");
            Workload::is_done(&program.workload)
        })
    }

    fn run(mut self, hosts: &[Host]) -> u64 {
        for _ in 0..self.random.below(10) {
            let pause = Duration::from_nanos(self.random.between(1_000, 200_000));
            self.world.run_for(pause);
            if self.is_done() {
                break;
            }
            self.disturb(hosts);
        }
        chaos::calm(&mut self.world);
        let until = self.world.now() + Duration::from_secs(60);
        while !self.is_done() && self.world.now() < until {
            self.world.run_for(Duration::from_micros(100));
        }
        if !self.is_done() {
            for task in &self.clients {
                let program: &ClientProgram<K::Client> = self.world.inspect(*task).expect("a client");
                println!("{}", program.describe());
            }
            let server: &ServerProgram<K::Server> = self.world.inspect(self.server).expect("the server");
            println!("{}", server.describe());
            self.world.last_records().iter().for_each(|record| println!("{record}"));
            panic!("calls are outstanding after a minute of calm");
        }
        let history = self.history.borrow();
        assert!(history.len() >= self.clients.len() * CALLS as usize);
        history.check();
        self.world.trace_hash()
    }
}

fn run_by(plan: Plan, seed: u64, random: Stream) -> u64 {
    run_kind(plan, seed, random, Own)
}

fn run_kind<K: Kind>(plan: Plan, seed: u64, mut random: Stream, kind: K) -> u64 {
    let mut world = World::new(chaos::config(seed, &mut random));
    let server_host = world.add_node();
    let hosts: Vec<Host> = (0..random.between(2, 4)).map(|_| world.add_node()).collect();
    let mut run = Run {
        plan,
        kind,
        server: TaskId::NONE,
        world,
        random,
        server_host,
        incarnation: 0,
        clients: Vec::new(),
        history: SharedHistory::default(),
    };
    run.spawn_server();
    for (number, host) in (0..).zip(&hosts) {
        run.spawn_client(host, number);
    }
    run.run(&hosts)
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

/// The same with unreliable connections, where lost messages are not reported.
pub fn over_uc(seed: u64) -> u64 {
    run_by(plan("uc-rpc"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// Stores whose GETs are READs, so full that a few keys cause entries to move.
pub fn that_is_read(seed: u64) -> u64 {
    let mut random = Stream::new(seed, Purpose::Program(1_000));
    let config = BypassConfig::default()
        .entries(random.between(8, 14) as u32)
        .extents_bytes(1 << 17)
        .value_max_bytes(8_000)
        .inline_bytes([0, 64, 300][random.below(3) as usize]);
    if random.below(2) == 0 {
        let pilaf = Read::<Pilaf> { config: config.inline_bytes(0), scheme: PhantomData };
        run_kind(plan("send-send"), seed, random, pilaf)
    } else {
        run_kind(plan("server-reply"), seed, random, Read::<Farm> { config, scheme: PhantomData })
    }
}

/// The same with results as datagrams.
pub fn by_herd(seed: u64) -> u64 {
    run_by(plan("herd"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with requests as datagrams, too.
pub fn by_datagrams(seed: u64) -> u64 {
    run_by(plan("ud-rpc"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with a server that notifies clients of results, which they READ.
pub fn by_notices(seed: u64) -> u64 {
    run_by(plan("rdma-memcached"), seed, Stream::new(seed, Purpose::Program(1_000)))
}

/// The same with each preset of the table in turn.
pub fn by_any_preset(seed: u64) -> u64 {
    run_by(plan_of_seed(seed), seed, Stream::new(seed, Purpose::Program(1_000)))
}
