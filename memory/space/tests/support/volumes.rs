//! Memory nodes that store a volume, and machines that mount it, on the software RNIC and in virtual time. Engines
//! stand for machines: one is dropped at any moment, and the next one claims the volume.

use std::time::Duration;

use farcall_link::{Entropy, Nic, SplitMix64};
use farcall_memory::wire::Reply;
use farcall_memory::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, Nanos};

use super::Load;

pub const SLAB_BYTES: usize = 8 * PAGE_BYTES;
pub const PAGES: usize = 20;
pub const SIZE_BYTES: usize = PAGES * PAGE_BYTES;
/// More than one chunk of metadata.
pub const METADATA_BYTES: u64 = 36 * PAGE_BYTES as u64;
pub const TERM: Duration = Duration::from_secs(10);
/// Connections take real time, which the virtual time does not include.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(5);
/// Virtual time per iteration.
pub const STEP_TIME: Duration = Duration::from_micros(200);
/// Number of iterations after which a wait has failed.
pub const STEPS_MAX: u32 = 1_000_000;

pub fn seeds(all: std::ops::Range<u64>) -> std::ops::Range<u64> {
    std::env::var("FARCALL_SEED").map_or(all, |seed| {
        let seed = seed.parse().unwrap();
        seed..seed + 1
    })
}

pub fn config(nodes: usize) -> ClientConfig {
    ClientConfig {
        name: "a mount".to_owned(),
        nodes: (0..nodes).map(|node| node.to_string()).collect(),
        size_bytes: SIZE_BYTES as u64,
        slab_bytes: SLAB_BYTES as u64,
        suspect_after: SUSPECT_AFTER,
        patience: Duration::from_secs(3_000),
        pool_bytes: 1 << 20,
        ..ClientConfig::default()
    }
}

pub fn volume(holder: u8) -> VolumeConfig {
    VolumeConfig::new("files".to_owned(), std::array::from_fn(|at| at as u8), [holder; 16], METADATA_BYTES)
}

/// Memory nodes; those that are `None` do not reply.
pub struct Nodes {
    pub nodes: Vec<Option<Node>>,
    /// The node that is a witness; `None` if there is none.
    pub witness: Option<usize>,
    seed: u64,
    pub now: Nanos,
}

impl Nodes {
    pub fn new(count: usize, seed: u64) -> Self {
        Self::with_witness(count, None, seed)
    }

    pub fn with_witness(count: usize, witness: Option<usize>, seed: u64) -> Self {
        let mut nodes = Self { nodes: Vec::new(), witness, seed, now: Nanos(1) };
        nodes.nodes.resize_with(count, || None);
        (0..count).for_each(|at| nodes.start(at));
        nodes
    }

    pub fn start(&mut self, at: usize) {
        self.seed += 1;
        let donated = NodeConfig {
            slab_bytes: SLAB_BYTES,
            slabs: 16,
            term: TERM,
            volumes_max: 2,
            metadata_bytes_max: 1 << 20,
            ..NodeConfig::default()
        };
        let config = if self.witness == Some(at) { donated.witness() } else { donated };
        self.nodes[at] = Some(Node::new(nic(self.seed), config, self.seed));
    }

    pub fn call_node(&mut self, at: usize, request: &[u8]) -> Result<Reply, NodeCallError> {
        let node =
            self.nodes[at].as_mut().ok_or_else(|| NodeCallError::Unreachable(format!("node {at} is off")))?;
        node.handle(request, self.now).map_err(NodeCallError::Refused)
    }

    pub fn claim(
        &mut self,
        config: ClientConfig,
        volume: &VolumeConfig,
    ) -> Result<(Engine, Takeover), OpenError> {
        self.seed += 1;
        let (nic, now) = (nic(self.seed), self.now);
        Engine::claim(&nic, config, volume, |at, request| self.call_node(at, &request.to_bytes()), || now)
    }

    pub fn claimed(&mut self, holder: u8) -> (Engine, Takeover) {
        let config = config(self.nodes.len());
        self.claim(config, &volume(holder)).unwrap()
    }

    pub fn drive_once(&mut self, engine: &mut Engine) {
        self.now = self.now + STEP_TIME;
        while let Some((at, bytes)) = engine.next_call(self.now) {
            let reply = self.call_node(at, &bytes).map(|reply| reply.to_bytes());
            engine.on_reply(at, reply, self.now);
        }
        engine.progress(self.now);
        self.tick();
        std::thread::yield_now();
    }

    pub fn tick(&mut self) {
        let now = self.now;
        self.nodes.iter_mut().flatten().for_each(|node| {
            node.tick(now);
        });
    }

    /// Lets all leases expire that are not renewed.
    pub fn wait_for_leases(&mut self) {
        self.now = self.now + TERM;
        self.tick();
    }

    pub fn execute(&mut self, engine: &mut Engine, request: Request) -> Result<Vec<u8>, IoError> {
        let token = request.token;
        engine.submit(request, self.now).unwrap();
        for _ in 0..STEPS_MAX {
            self.drive_once(engine);
            if let Some(ended) = engine.next_completed() {
                assert_eq!(ended.token, token);
                return ended.result;
            }
        }
        panic!("not in time; {:?}", engine.status())
    }

    pub fn write(&mut self, engine: &mut Engine, offset: usize, bytes: &[u8]) -> Result<(), IoError> {
        let work = Work::Write(bytes.to_vec().into());
        self.execute(engine, Request { token: 1 << 40, offset: offset as u64, work }).map(drop)
    }

    pub fn read(&mut self, engine: &mut Engine, offset: usize, len_bytes: usize) -> Result<Vec<u8>, IoError> {
        let work = Work::Read { len_bytes };
        self.execute(engine, Request { token: 1 << 40, offset: offset as u64, work })
    }

    pub fn write_metadata(
        &mut self,
        engine: &mut Engine,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), IoError> {
        let work = Work::WriteMetadata(bytes.to_vec());
        self.execute(engine, Request { token: 1 << 40, offset: offset as u64, work }).map(drop)
    }

    pub fn until(&mut self, engine: &mut Engine, what: &str, mut is_so: impl FnMut(&Engine) -> bool) {
        for _ in 0..STEPS_MAX {
            if is_so(engine) {
                return;
            }
            self.drive_once(engine);
        }
        panic!("not in time: {what}; {:?}", engine.status());
    }
}

pub fn nic(seed: u64) -> Nic {
    Nic::open(&SoftNic::new()).unwrap().with_entropy(Entropy::seeded(seed))
}

/// Waits until all requests have completed.
pub fn finish(nodes: &mut Nodes, engine: &mut Engine, load: &mut Load) {
    for _ in 0..STEPS_MAX {
        collect(engine, load);
        if load.in_progress() == 0 {
            return;
        }
        nodes.drive_once(engine);
    }
    panic!("not in time: all is over; {:?}", engine.status());
}

pub fn collect(engine: &mut Engine, load: &mut Load) {
    while let Some(ended) = engine.next_completed() {
        load.ended(ended);
    }
}

/// Fills all pages, each with different bytes.
pub fn fill(nodes: &mut Nodes, engine: &mut Engine, seed: u64) -> Vec<u8> {
    let mut stream = SplitMix64::new(seed);
    let bytes: Vec<u8> = (0..SIZE_BYTES).map(|_| stream.next_u64() as u8).collect();
    nodes.write(engine, 0, &bytes).unwrap();
    bytes
}

/// Performs a random step of the client or the load.
pub fn step(nodes: &mut Nodes, engine: &mut Engine, load: &mut Load) {
    match load.below(3) {
        0 => nodes.drive_once(engine),
        1 => collect(engine, load),
        _ if engine.has_room(8) => {
            if let Some(request) = load.request() {
                engine.submit(request, nodes.now).unwrap();
            }
        }
        _ => {}
    }
}

/// Reads and checks each page from another machine.
pub fn check_all(nodes: &mut Nodes, load: &mut Load) {
    nodes.wait_for_leases();
    let (mut engine, _) = nodes.claimed(99);
    for page in 0..PAGES {
        engine.submit(load.read_page(page), nodes.now).unwrap();
        nodes.until(&mut engine, "a page is read", |engine| engine.pending() == 0);
        collect(&mut engine, load);
    }
}
