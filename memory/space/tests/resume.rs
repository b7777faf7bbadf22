//! An address space whose process exits at any moment and is resumed by another process, compared with plain memory,
//! on the software RNIC. Engines stand for processes: one is dropped, and the next one gets its recovery file.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::time::{Duration, Instant};

use farcall_link::{Nic, SplitMix64};
use farcall_memory::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Clock, Endpoint, MonotonicClock};

/// Deadline of a wait, longer than any pause of a busy machine.
const LOST: Duration = Duration::from_secs(600);
/// Longer than any pause of the machine.
const LONG: Duration = Duration::from_secs(3_000);
const SLAB_BYTES: usize = 8 * PAGE_BYTES;
const SIZE_BYTES: usize = 20 * PAGE_BYTES;

struct Space {
    engine: Option<Engine>,
    nodes: Vec<Node>,
    clock: MonotonicClock,
    recovery_file: File,
    last_token: u64,
    /// Content of the memory when all writes in progress are complete.
    model: Vec<u8>,
    /// Writes that were not reported as complete yet.
    in_progress: BTreeMap<u64, Range<usize>>,
}

impl Space {
    fn new() -> Self {
        let donated = NodeConfig { slab_bytes: SLAB_BYTES, slabs: 16, term: LONG, ..NodeConfig::default() };
        let node = |at| Node::new(Nic::open(&SoftNic::new()).unwrap(), donated, at);
        let (clock, recovery_file) = (MonotonicClock::new(), memfd());
        Self {
            engine: Some(begin(&recovery_file, &clock)),
            nodes: (0..3).map(node).collect(),
            clock,
            recovery_file,
            last_token: 0,
            model: vec![0; SIZE_BYTES],
            in_progress: BTreeMap::new(),
        }
    }

    fn drive_once(&mut self) {
        let now = self.clock.now();
        while let Some((at, bytes)) = self.engine().next_call(now) {
            let reply = self.nodes[at].handle(&bytes, now);
            let reply = reply.map(|reply| reply.to_bytes()).map_err(NodeCallError::Refused);
            self.engine().on_reply(at, reply, now);
        }
        self.engine().progress(now);
        self.nodes.iter_mut().for_each(|node| {
            node.tick(now);
        });
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().unwrap()
    }

    fn submit(&mut self, offset: usize, work: Work) -> u64 {
        self.last_token += 1;
        let request = Request { token: self.last_token, offset: offset as u64, work };
        let now = self.clock.now();
        self.engine().submit(request, now).unwrap();
        self.last_token
    }

    /// Starts a write of a random range that overlaps no other write in progress. It may share a page with another
    /// write.
    fn write(&mut self, rng: &mut SplitMix64) {
        let offset = rng.below(SIZE_BYTES as u64) as usize;
        let longest = [60, PAGE_BYTES, 4 * PAGE_BYTES][rng.below(3) as usize];
        let len_bytes = (1 + rng.below(longest as u64) as usize).min(SIZE_BYTES - offset);
        let range = offset..offset + len_bytes;
        let is_taken = self.engine().has_room(6);
        if !is_taken
            || self.in_progress.values().any(|other| other.start < range.end && range.start < other.end)
        {
            return;
        }
        let bytes: Vec<u8> = (0..len_bytes).map(|_| rng.next_u64() as u8).collect();
        self.model[range.clone()].copy_from_slice(&bytes);
        let token = self.submit(offset, Work::Write(bytes.into()));
        self.in_progress.insert(token, range);
    }

    fn collect(&mut self) {
        while let Some(CompletedRequest { token, result }) = self.engine().next_completed() {
            assert_eq!(result, Ok(Vec::new()), "token {token}");
            self.in_progress.remove(&token);
        }
    }

    /// The process exits here, and the next one begins.
    fn crash(&mut self) {
        self.engine = None;
        self.engine = Some(begin(&self.recovery_file, &self.clock));
        // These writes are not reported any more, but they are repeated.
        self.in_progress.clear();
    }

    fn read_all(&mut self) -> Vec<u8> {
        let until = Instant::now() + LOST;
        while !self.engine().has_room(SIZE_BYTES / PAGE_BYTES) {
            assert!(Instant::now() < until, "not in time");
            self.drive_once();
            self.collect();
        }
        let token = self.submit(0, Work::Read { len_bytes: SIZE_BYTES });
        loop {
            self.drive_once();
            while let Some(ended) = self.engine().next_completed() {
                if ended.token == token {
                    return ended.result.unwrap();
                }
            }
            assert!(Instant::now() < until, "not in time; {:?}", self.engine().status());
        }
    }
}

fn memfd() -> File {
    rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

fn config() -> ClientConfig {
    ClientConfig {
        nodes: vec!["0".into()],
        nodes_max: 3,
        size_bytes: SIZE_BYTES as u64,
        slab_bytes: SLAB_BYTES as u64,
        patience: LONG,
        suspect_after: LONG,
        pool_bytes: 1 << 20,
        ..ClientConfig::default()
    }
}

fn resume(recovery_file: &File, clock: &MonotonicClock) -> Result<Engine, OpenError> {
    Engine::resume(
        &Nic::open(&SoftNic::new()).unwrap(),
        config(),
        recovery_file.try_clone().unwrap(),
        clock.now(),
    )
}

/// Resumes the engine, and adds the nodes that it may not know.
fn begin(recovery_file: &File, clock: &MonotonicClock) -> Engine {
    let mut engine = resume(recovery_file, clock).unwrap();
    for node in ["1", "2"] {
        engine.join(node).unwrap();
    }
    engine
}

#[test]
fn restores_all_confirmed_and_begun_writes_in_a_new_process() {
    let seeds = std::env::var("FARCALL_SEED").map_or(1..25, |seed| {
        let seed = seed.parse().unwrap();
        seed..seed + 1
    });
    for seed in seeds {
        println!("seed {seed}");
        let (mut space, mut rng) = (Space::new(), SplitMix64::new(seed));
        for _ in 0..12 {
            for _ in 0..rng.below(60) {
                match rng.below(3) {
                    0 => space.drive_once(),
                    1 => space.collect(),
                    _ => space.write(&mut rng),
                }
            }
            space.crash();
            // Exit again, also while the earlier writes are repeated.
            for _ in 0..rng.below(3) {
                (0..rng.below(20)).for_each(|_| space.drive_once());
                space.crash();
            }
            if rng.below(2) == 0 {
                assert!(space.read_all() == space.model, "seed {seed}: other bytes");
            }
        }
        assert!(space.read_all() == space.model, "seed {seed}: other bytes");
        let status = space.engine().status();
        assert_eq!((status.counts.wrong, status.lost), (0, 0), "seed {seed}");
        assert!(status.table_bytes <= 12 * SIZE_BYTES / PAGE_BYTES);
    }
}

#[test]
fn rejects_the_recovery_file_of_another_space() {
    let (recovery_file, clock) = (memfd(), MonotonicClock::new());
    drop(resume(&recovery_file, &clock).unwrap());
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let other = ClientConfig { size_bytes: SIZE_BYTES as u64 / 2, ..config() };
    let refused = Engine::resume(&nic, other, recovery_file.try_clone().unwrap(), clock.now()).err().unwrap();
    assert!(refused.to_string().contains("another address space"), "{refused}");
}

#[test]
fn restores_joined_nodes_in_order_in_a_new_process() {
    let mut space = Space::new();
    let mut rng = SplitMix64::new(1);
    (0..40).for_each(|_| space.write(&mut rng));
    assert!(space.read_all() == space.model);
    drop(space.engine.take());
    let other = ClientConfig { nodes: vec!["3".into(), "2".into()], nodes_max: 4, ..config() };
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let recovery_file = space.recovery_file.try_clone().unwrap();
    let mut engine = Engine::resume(&nic, other, recovery_file, space.clock.now()).unwrap();
    let addresses: Vec<String> = engine.status().nodes.into_iter().map(|node| node.address).collect();
    assert_eq!(addresses, ["0", "1", "2", "3"]);
    assert_eq!(engine.join("4").unwrap_err().to_string(), "nodes is 5: from 1 to 4");
}
