//! An address space over nodes in this process, on the software RNIC: compared with plain memory, and with corrupted
//! memory. The test delivers the calls.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall_io::{Buffer, Config, Direction, Handler, Poller, PollerConfig, TransferCompletion, Window};
use farcall_link::{Nic, SplitMix64};
use farcall_memory::wire::{Reply, Request as NodeRequest};
use farcall_memory::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos};
use proptest::prelude::*;

/// Deadline of a wait, longer than any pause of a busy machine.
const LOST: Duration = Duration::from_secs(600);
const SLAB_BYTES: usize = 8 * PAGE_BYTES;
const SIZE_BYTES: usize = 20 * PAGE_BYTES;
/// Longer than any pause of the machine.
const LONG: Duration = Duration::from_secs(3_000);

struct Space {
    engine: Engine,
    nodes: Vec<Node>,
    clock: MonotonicClock,
    last_token: u64,
}

impl Space {
    fn new(nodes: usize, slabs: u32, change: impl FnOnce(&mut ClientConfig)) -> Self {
        Self::with_slabs(SLAB_BYTES, nodes, slabs, change)
    }

    fn with_slabs(
        slab_bytes: usize,
        nodes: usize,
        slabs: u32,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Self {
        let donated = NodeConfig { slab_bytes, slabs, term: LONG, ..NodeConfig::default() };
        let node = |at| Node::new(Nic::open(&SoftNic::new()).unwrap(), donated, at as u64);
        let mut config = ClientConfig {
            nodes: (0..nodes).map(|node| node.to_string()).collect(),
            size_bytes: SIZE_BYTES as u64,
            slab_bytes: slab_bytes as u64,
            patience: LONG,
            pool_bytes: 1 << 20,
            // Only the reads of a test detect corruption.
            scrub_pages_per_s: 0,
            ..ClientConfig::default()
        };
        change(&mut config);
        let engine = Engine::new(&Nic::open(&SoftNic::new()).unwrap(), config).unwrap();
        let nodes = (0..nodes).map(node).collect();
        Self { engine, nodes, clock: MonotonicClock::new(), last_token: 0 }
    }

    fn drive_once(&mut self) {
        drive_once(&mut self.engine, &mut self.nodes, self.clock.now());
    }

    fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + LOST;
        while !is_done(self) {
            assert!(Instant::now() < until, "not in time: {what}; {:?}", self.engine.status());
            self.drive_once();
        }
    }

    fn submit(&mut self, offset: usize, work: Work) -> u64 {
        self.last_token += 1;
        let request = Request { token: self.last_token, offset: offset as u64, work };
        self.engine.submit(request, self.clock.now()).unwrap();
        self.last_token
    }

    /// Issues a request and waits until it completes.
    fn call_node(&mut self, offset: usize, work: Work) -> Result<Vec<u8>, IoError> {
        let token = self.submit(offset, work);
        let mut found = None;
        self.until("a request is over", |space| {
            found = space.engine.next_completed();
            found.is_some()
        });
        let ended = found.unwrap();
        assert_eq!(ended.token, token);
        ended.result
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.call_node(offset, Work::Write(bytes.to_vec().into())).unwrap();
    }

    fn read(&mut self, offset: usize, len_bytes: usize) -> Result<Vec<u8>, IoError> {
        self.call_node(offset, Work::Read { len_bytes })
    }

    /// Writes every page, each with different bytes.
    fn fill(&mut self) -> Vec<u8> {
        let mut stream = SplitMix64::new(9);
        let bytes: Vec<u8> = (0..SIZE_BYTES).map(|_| stream.next_u64() as u8).collect();
        self.write(0, &bytes);
        bytes
    }

    /// Writes the first slab, which may be a new one.
    fn fill_first_slab(&mut self) {
        let token = self.submit(0, Work::Write(vec![9; SLAB_BYTES].into()));
        self.until("the first slab is written", |space| {
            space.engine.next_completed().is_some_and(|ended| ended.token == token && ended.result.is_ok())
        });
    }

    /// Flips one bit in each page of each slab of a node.
    fn flip(&self, node: usize, rng: &mut SplitMix64) {
        for (_, slab) in self.nodes[node].granted() {
            for page in 0..slab.len_bytes() / PAGE_BYTES {
                let at = page * PAGE_BYTES + rng.below(PAGE_BYTES as u64) as usize;
                let mut byte = [0];
                slab.copy_out(at, &mut byte);
                slab.copy_in(at, &[byte[0] ^ 1 << rng.below(8)]);
            }
        }
    }

    fn drain(&mut self, node: usize, is_wanted: bool) {
        self.request(node, &NodeRequest::Drain { is_wanted });
    }

    /// Returns the latest report of the client to a node.
    fn reported(&self, node: usize) -> wire::Redundancy {
        let status = self.nodes[node].status(self.clock.now());
        status.reports.first().and_then(|report| report.redundancy).unwrap_or_default()
    }

    fn request(&mut self, node: usize, request: &NodeRequest) {
        let request = request.to_bytes();
        self.nodes[node].handle(&request, self.clock.now()).unwrap();
        // The client learns of the request when it renews its lease.
        self.engine.renew_now();
    }

    /// Restarts a node, which loses its state.
    fn restart(&mut self, node: usize) {
        self.restart_with(node, 8);
    }

    fn restart_with(&mut self, node: usize, slabs: u32) {
        let donated = NodeConfig { slab_bytes: SLAB_BYTES, slabs, term: LONG, ..NodeConfig::default() };
        let life = self.nodes.len() as u64 + self.last_token;
        self.nodes[node] = Node::new(Nic::open(&SoftNic::new()).unwrap(), donated, life);
    }

    fn held(&self, node: usize) -> usize {
        self.nodes[node].granted().count()
    }
}

fn reply(engine: &mut Engine, nodes: &mut [Node], at: usize, request: &[u8], now: Nanos) {
    let reply = nodes[at].handle(request, now);
    let reply = reply.map(|reply| reply.to_bytes()).map_err(NodeCallError::Refused);
    engine.on_reply(at, reply, now);
}

fn drive_once(engine: &mut Engine, nodes: &mut [Node], now: Nanos) {
    while let Some((at, request)) = engine.next_call(now) {
        reply(engine, nodes, at, &request, now);
    }
    engine.progress(now);
    for node in nodes {
        node.tick(now);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, len_bytes: usize, seed: u64 },
    Read { offset: usize, len_bytes: usize },
    Scrub,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE_BYTES, prop_oneof![1..200_usize, 1..3 * PAGE_BYTES, Just(PAGE_BYTES)]);
    let range = range.prop_map(|(offset, len_bytes)| (offset, len_bytes.min(SIZE_BYTES - offset)));
    prop_oneof![
        8 => (range.clone(), any::<u64>())
            .prop_map(|((offset, len_bytes), seed)| Step::Write { offset, len_bytes, seed }),
        8 => range.prop_map(|(offset, len_bytes)| Step::Read { offset, len_bytes }),
        1 => Just(Step::Scrub),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Requests are issued without waiting for earlier ones. Each read returns what it would if they were executed in
    /// order.
    #[test]
    fn matches_a_plain_vector(
        steps in prop::collection::vec(step(), 1..60),
        nodes in 1..4_usize,
        replicas in 1..3_usize,
    ) {
        let mut space = Space::new(nodes, 8, |config| config.replicas = replicas);
        let mut model = vec![0; SIZE_BYTES];
        let mut wanted = std::collections::BTreeMap::new();
        for step in steps {
            let (token, bytes) = match step {
                Step::Write { offset, len_bytes, seed } => {
                    let mut stream = SplitMix64::new(seed);
                    let bytes: Vec<u8> = (0..len_bytes).map(|_| stream.next_u64() as u8).collect();
                    model[offset..offset + len_bytes].copy_from_slice(&bytes);
                    (space.submit(offset, Work::Write(bytes.into())), Vec::new())
                }
                Step::Read { offset, len_bytes } => {
                    let bytes = model[offset..offset + len_bytes].to_vec();
                    (space.submit(offset, Work::Read { len_bytes }), bytes)
                }
                Step::Scrub => (space.submit(0, Work::Scrub), Vec::new()),
            };
            wanted.insert(token, bytes);
        }
        space.until("all is over", |space| {
            while let Some(ended) = space.engine.next_completed() {
                let bytes = wanted.remove(&ended.token).expect("told of once");
                assert_eq!(ended.result.as_ref(), Ok(&bytes), "request {}", ended.token);
            }
            wanted.is_empty()
        });
        prop_assert_eq!(space.read(0, SIZE_BYTES).unwrap(), model);
        let counts = space.engine.status().counts;
        prop_assert_eq!((counts.wrong, counts.lost), (0, 0));
    }
}

#[test]
fn repairs_flipped_bits() {
    let mut rng = SplitMix64::new(1);
    let mut space = Space::new(2, 8, |_| ());
    let bytes = space.fill();
    // Every page of one node is wrong: reads detect that and use the other node.
    space.flip(0, &mut rng);
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    space.call_node(0, Work::Scrub).unwrap();
    let counts = space.engine.status().counts;
    assert_eq!((counts.wrong, counts.repaired, counts.lost), (20, 20, 0));
    // All pages were repaired, so those of the other node may be wrong now.
    space.flip(1, &mut rng);
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
}

#[test]
fn reports_a_damaged_page_without_failing_its_neighbours() {
    let mut rng = SplitMix64::new(2);
    let mut space = Space::new(2, 8, |_| ());
    let bytes = space.fill();
    space.flip(0, &mut rng);
    space.flip(1, &mut rng);
    assert_eq!(space.read(3 * PAGE_BYTES, 10), Err(IoError::Lost { page: 3 }));
    // Writing a part of a page needs the rest of the page; writing all of it does not.
    assert_eq!(space.call_node(5, Work::Write(vec![1].into())), Err(IoError::Lost { page: 0 }));
    space.write(3 * PAGE_BYTES, &bytes[3 * PAGE_BYTES..4 * PAGE_BYTES]);
    assert_eq!(space.read(3 * PAGE_BYTES, PAGE_BYTES).unwrap(), bytes[3 * PAGE_BYTES..4 * PAGE_BYTES]);
    assert_eq!(space.read(4 * PAGE_BYTES, 10), Err(IoError::Lost { page: 4 }));
}

#[test]
fn reads_unwritten_pages_as_zeros_without_memory() {
    let mut space = Space::new(1, 8, |_| ());
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), vec![0; SIZE_BYTES]);
    assert_eq!((space.held(0), space.engine.status().table_bytes), (0, 0));
    space.write(100, &[7]);
    assert_eq!(space.held(0), 1);
    // 12 bytes per page of the slab: 0.3 % of the remote memory.
    assert_eq!(space.engine.status().table_bytes, SLAB_BYTES / PAGE_BYTES * 12);
}

#[test]
fn places_replicas_on_different_nodes() {
    let mut space = Space::new(4, 8, |_| ());
    space.fill();
    let held: Vec<usize> = (0..4).map(|node| space.held(node)).collect();
    // Three slabs' worth of pages, with two replicas each: no node has both replicas of a slab.
    assert_eq!(held.iter().sum::<usize>(), 6);
    assert!(held.iter().all(|slabs| *slabs <= 3), "{held:?}");
    assert_eq!(space.engine.status().degraded, 0);
}

#[test]
fn returns_memory_to_a_node_without_loss() {
    let mut space = Space::new(3, 8, |_| ());
    let bytes = space.fill();
    for node in [0, 1, 2, 0] {
        space.drain(node, true);
        space.until("the node has its memory back", |space| space.held(node) == 0);
        assert_eq!(space.engine.status().degraded, 0);
        assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
        space.drain(node, false);
    }
    assert_eq!(space.engine.status().counts.lost, 0);
}

#[test]
fn keeps_two_replicas_on_draining_nodes_unless_forced() {
    let mut space = Space::new(2, 8, |_| ());
    let bytes = space.fill();
    space.drain(0, true);
    space.until("the client reports what it keeps", |space| space.reported(0).held_back == 3);
    assert_eq!((space.held(0), space.engine.status().degraded), (3, 0));
    // This does not change by itself.
    (0..10_000).for_each(|_| space.drive_once());
    assert_eq!((space.held(0), space.reported(0).held_back), (3, 3));
    space.drain(0, false);
    space.until("nothing is held back", |space| space.reported(0).held_back == 0);
    space.request(0, &NodeRequest::DrainForced);
    space.until("the node has its memory back", |space| space.held(0) == 0);
    space.until("the client reports one replica of each slab", |space| space.reported(1).degraded == 3);
    assert_eq!(space.engine.status().degraded, 3);
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
}

#[test]
fn reports_replicas_that_are_missing_copied_and_in_sync() {
    let mut space = Space::new(2, 8, |_| ());
    space.fill();
    let whole = wire::Redundancy { replicas: 2, slabs: 3, ..wire::Redundancy::default() };
    space.until("both nodes have the report", |space| {
        [0, 1].iter().all(|node| space.reported(*node) == whole)
    });
    // A node without capacity: the state lasts until it is reported.
    space.restart_with(1, 0);
    space.engine.renew_now();
    space.until("slabs have one replica", |space| space.reported(0).degraded == 3);
    space.restart(1);
    space.engine.renew_now();
    space.until("they have two again", |space| space.reported(0) == whole && space.reported(1) == whole);
    let status = space.engine.status();
    assert_eq!((status.degraded, status.copying, status.lost), (0, 0, 0));
    assert!(status.counts.copied >= 20);
}

#[test]
fn repairs_damage_that_no_request_reads() {
    let mut rng = SplitMix64::new(3);
    let mut space = Space::new(2, 8, |config| config.scrub_pages_per_s = 1_000);
    let bytes = space.fill();
    for node in [0, 1] {
        let before = space.engine.status().counts.repaired;
        space.flip(node, &mut rng);
        space.until("all pages are repaired", |space| space.engine.status().counts.repaired >= before + 20);
    }
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    assert_eq!(space.engine.status().counts.lost, 0);
}

#[test]
fn scrubs_everything_when_a_node_requests_it() {
    let mut rng = SplitMix64::new(4);
    let mut space = Space::new(2, 8, |_| ());
    let bytes = space.fill();
    space.flip(1, &mut rng);
    space.request(0, &NodeRequest::Scrub);
    assert_eq!(space.reported(0).scrubs, 0);
    space.until("the scrub is complete", |space| space.reported(0).scrubs == 1);
    let report = space.reported(0);
    let pages = space.engine.status().counts.scrubbed;
    assert!(report.repaired >= 20 && report.scrubbed == pages, "{report:?}, {pages} pages");
    // Both nodes request a scrub before the client learns of it: one scrub suffices for both.
    space.request(0, &NodeRequest::Scrub);
    space.request(1, &NodeRequest::Scrub);
    space.until("both know that it is complete", |space| {
        space.reported(0).scrubs == 2 && space.reported(1).scrubs == 1
    });
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    let counts = space.engine.status().counts;
    assert_eq!((counts.wrong, counts.scrubbed), (report.repaired, 2 * pages));
}

#[test]
fn waits_for_slabs_that_nodes_expect_back() {
    let mut space = Space::new(2, 8, |_| ());
    let bytes = vec![7; SIZE_BYTES];
    let token = space.submit(0, Work::Write(bytes.clone().into()));
    let (mut waits, mut ended) = (0, None);
    let until = Instant::now() + LOST;
    while ended.is_none() {
        assert!(Instant::now() < until, "not in time; {:?}", space.engine.status());
        let now = space.clock.now();
        while let Some((at, request)) = space.engine.next_call(now) {
            let is_grant = matches!(NodeRequest::parse(&request), Ok(NodeRequest::Grant { .. }));
            if is_grant && waits < 20 {
                waits += 1;
                space.engine.on_reply(at, Ok(wire::Reply::Wait.to_bytes()), now);
            } else {
                reply(&mut space.engine, &mut space.nodes, at, &request, now);
            }
        }
        space.engine.progress(now);
        ended = space.engine.next_completed();
    }
    assert_eq!((waits, ended), (20, Some(CompletedRequest { token, result: Ok(Vec::new()) })));
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
}

#[test]
fn fails_a_write_without_free_space_and_spills_if_allowed() {
    let mut space = Space::new(1, 1, |config| config.replicas = 1);
    space.write(0, &[1; PAGE_BYTES]);
    let page = (SLAB_BYTES / PAGE_BYTES) as u64;
    assert_eq!(space.call_node(SLAB_BYTES, Work::Write(vec![2].into())), Err(IoError::NoRoom { page }));
    assert_eq!(space.read(0, PAGE_BYTES).unwrap(), [1; PAGE_BYTES]);

    let path = std::env::temp_dir().join(format!("farcall-spill-{}", std::process::id()));
    let mut space = Space::new(1, 1, |config| {
        config.replicas = 1;
        config.spill = Some(path.clone());
    });
    let bytes = space.fill();
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    let status = space.engine.status();
    assert_eq!((status.extents, status.spilled), (3, 2));
    assert!(!path.exists(), "nothing is left of it");
    // The node drains: its slab goes to the file as well.
    space.drain(0, true);
    space.until("the node has its memory back", |space| space.held(0) == 0);
    assert_eq!(space.engine.status().spilled, 3);
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
}

/// The first client does not know that its lease has ended: it still has its session and a key.
#[test]
fn fails_a_write_after_lease_expiry_without_changing_bytes() {
    let mut first = Space::new(1, 1, |config| config.replicas = 1);
    first.write(0, &[1; PAGE_BYTES]);
    let late = first.clock.now() + 2 * LONG;
    first.nodes[0].tick(late);
    assert_eq!(first.held(0), 0);
    // The second client gets the only slab.
    let mut second = Space::new(1, 1, |config| config.replicas = 1);
    std::mem::swap(&mut first.nodes, &mut second.nodes);
    second.write(0, &[2; PAGE_BYTES]);
    std::mem::swap(&mut first.nodes, &mut second.nodes);
    assert_eq!(first.call_node(0, Work::Write(vec![3; PAGE_BYTES].into())), Err(IoError::NoRoom { page: 0 }));
    assert_eq!(first.read(0, 1), Err(IoError::Lost { page: 0 }));
    let mut found = [0; PAGE_BYTES];
    first.nodes[0].granted().for_each(|(_, slab)| slab.copy_out(0, &mut found));
    assert_eq!(found, [2; PAGE_BYTES]);
}

/// Collects the completions of a session.
#[derive(Clone, Default)]
struct CompletionLog(Arc<Mutex<Vec<TransferCompletion<()>>>>);

impl Handler for CompletionLog {
    type Context = ();

    fn on_completion(&self, completion: TransferCompletion<()>) {
        self.0.lock().unwrap().push(completion);
    }
}

/// The second client knows the address and key of a slab of the first one.
#[test]
fn rejects_the_key_of_another_client() {
    let mut space = Space::new(1, 4, |config| config.replicas = 1);
    space.write(0, &[1; PAGE_BYTES]);
    let foreign = space.nodes[0].granted().next().unwrap().1.remote();
    let now = space.clock.now();
    let mut call_node = |request: NodeRequest| space.nodes[0].handle(&request.to_bytes(), now).unwrap();
    let Reply::Leased { lease, .. } =
        call_node(NodeRequest::Lease { version: wire::VERSION, name: "other".into() })
    else {
        panic!()
    };
    let Reply::Granted { region: own, .. } = call_node(NodeRequest::Grant { lease, slab: 1 }) else {
        panic!()
    };
    let mut read = |region, grant| {
        let completions = CompletionLog::default();
        let mut poller = Poller::new(&Nic::open(&SoftNic::new()).unwrap(), PollerConfig::default()).unwrap();
        let session = poller.open(Config::default(), Window::PAPER, completions.clone()).unwrap();
        let Reply::Connected { pairs } = call_node(NodeRequest::Connect { lease, pairs: session.infos() })
        else {
            panic!()
        };
        session.connect(&pairs, &[own, region]).unwrap();
        let buffer = Buffer::Owned(vec![7; PAGE_BYTES]);
        let request =
            farcall_io::Request { direction: Direction::Read, grant, offset: 0, buffer, context: () };
        session.submit(request).unwrap();
        let until = Instant::now() + LOST;
        let done = loop {
            if let Some(done) = completions.0.lock().unwrap().pop() {
                break done;
            }
            assert!(Instant::now() < until, "the READ does not end");
            poller.progress(MonotonicClock::new().now());
        };
        done.result.map(|()| done.buffer.into_owned().unwrap())
    };
    assert!(read(foreign, 1).is_err(), "another's slab was read");
    assert_eq!(read(own, 1).unwrap(), vec![0; PAGE_BYTES], "one's own is");
}

#[test]
fn grants_zeroed_slabs_under_new_keys() {
    let mut space = Space::new(1, 1, |config| config.replicas = 1);
    let mut keys = std::collections::BTreeSet::new();
    for _ in 0..3 {
        space.fill_first_slab();
        for (_, slab) in space.nodes[0].granted() {
            assert!(keys.insert(slab.remote().rkey), "a key comes again");
        }
        let late = space.clock.now() + 2 * LONG;
        space.nodes[0].tick(late);
        let request = NodeRequest::Lease { version: wire::VERSION, name: "next".into() };
        let Ok(Reply::Leased { lease, .. }) = space.nodes[0].handle(&request.to_bytes(), late) else {
            panic!()
        };
        space.nodes[0].handle(&NodeRequest::Grant { lease, slab: 1 }.to_bytes(), late).unwrap();
        for (_, slab) in space.nodes[0].granted() {
            let mut found = vec![1; SLAB_BYTES];
            slab.copy_out(0, &mut found);
            assert!(found.iter().all(|byte| *byte == 0) && keys.insert(slab.remote().rkey));
        }
        space.nodes[0].handle(&NodeRequest::End { lease }.to_bytes(), late).unwrap();
    }
}

/// One node replies at once, the other one much later.
#[test]
fn requests_no_lease_while_closing() {
    let mut space = Space::new(2, 8, |_| ());
    space.fill();
    space.engine.close();
    let mut now = space.clock.now();
    let mut called = Vec::new();
    while let Some((at, bytes)) = space.engine.next_call(now) {
        called.push(at);
        let reply = space.nodes[at].handle(&bytes, now).map(|reply| reply.to_bytes());
        space.engine.on_reply(at, reply.map_err(NodeCallError::Refused), now);
        now = now + Duration::from_secs(1);
    }
    assert_eq!((called, space.engine.is_closed()), (vec![0, 1], true));
    assert!(space.nodes.iter().all(|node| node.status(now).holders.is_empty()));
}

#[test]
fn limits_runs_to_the_pool() {
    let mut space = Space::new(2, 8, |config| config.pool_bytes = 16 * PAGE_BYTES);
    let bytes = space.fill();
    assert_eq!(space.fill(), bytes);
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    assert!(space.engine.status().counts.pages_together > 0);
}

#[test]
fn holds_pages_of_a_run_until_completion() {
    let mut space = Space::new(2, 8, |_| {});
    space.write(0, &[1; PAGE_BYTES]);
    let bytes = vec![2; 4 * PAGE_BYTES];
    let token = space.submit(2 * PAGE_BYTES, Work::Write(bytes.clone().into()));
    for page in 2..6 {
        assert!(space.engine.is_written(page), "page {page} may have been written");
        assert!(!space.engine.holds(page, &bytes[..PAGE_BYTES]), "page {page}: nobody was told that it was");
    }
    space
        .until("it is over", |space| space.engine.next_completed().is_some_and(|ended| ended.token == token));
    assert!((2..6).all(|page| space.engine.holds(page, &bytes[..PAGE_BYTES])));
    assert_eq!(space.engine.status().counts.pages_together, 4);
}

#[test]
fn writes_pages_one_by_one_after_a_node_missed_their_run() {
    let mut space = Space::new(2, 8, |config| config.suspect_after = Duration::from_millis(20));
    space.fill();
    // The node is restarted unnoticed.
    space.restart(0);
    let bytes = vec![3; 6 * PAGE_BYTES];
    let token = space.submit(0, Work::Write(bytes.clone().into()));
    space
        .until("it is over", |space| space.engine.next_completed().is_some_and(|ended| ended.token == token));
    let counts = space.engine.status().counts;
    assert!(counts.runs_broken > 0, "{counts:?}");
    assert!(counts.replicas_dropped > 0, "it is told when all replicas that there are have it: {counts:?}");
    assert_eq!(space.read(0, bytes.len()).unwrap(), bytes);
}

#[test]
fn writes_a_run_to_a_replica_created_during_it() {
    let mut space = Space::new(3, 8, |config| config.suspect_after = Duration::from_millis(20));
    // The other pages of the slab were never written, so they are not copied.
    space.write(0, &[1; PAGE_BYTES]);
    let holders: Vec<usize> = (0..3).filter(|node| space.held(*node) > 0).collect();
    let [first, second] = holders[..] else { panic!("two replicas: {holders:?}") };
    space.restart(first);
    // The client learns of the restart when it renews its lease.
    space.engine.renew_now();
    // Write while the third node grants a slab. The run did not begin with the new replica.
    let bytes = vec![2; 4 * PAGE_BYTES];
    let until = Instant::now() + LOST;
    let mut token = None;
    while space.engine.status().counts.runs_broken == 0 {
        assert!(Instant::now() < until, "not in time: {:?}", space.engine.status());
        let now = space.clock.now();
        while let Some((at, request)) = space.engine.next_call(now) {
            if matches!(NodeRequest::parse(&request), Ok(NodeRequest::Grant { .. })) && token.is_none() {
                token = Some(space.submit(4 * PAGE_BYTES, Work::Write(bytes.clone().into())));
            }
            reply(&mut space.engine, &mut space.nodes, at, &request, now);
        }
        space.engine.progress(now);
    }
    space.until("it is over", |space| {
        space.engine.next_completed().is_some_and(|ended| Some(ended.token) == token)
    });
    space.until("two replicas are in sync", |space| space.engine.status().degraded == 0);
    space.restart(second);
    assert_eq!(space.read(4 * PAGE_BYTES, bytes.len()).unwrap(), bytes);
    assert_eq!(space.engine.status().counts.wrong, 0);
}

#[test]
fn rereads_only_wrong_pages_of_a_run() {
    let mut space = Space::new(2, 8, |_| {});
    // Pages of slabs that have to be requested first are written singly.
    let _first = space.fill();
    let before = space.engine.status().counts;
    let bytes = space.fill();
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    let counts = space.engine.status().counts;
    let pages = (SIZE_BYTES / PAGE_BYTES) as u64;
    assert_eq!(counts.pages_together - before.pages_together, 2 * pages, "written and read");
    assert_eq!(counts.runs_broken, 0);

    for (_, slab) in space.nodes[0].granted() {
        slab.copy_in(5 * PAGE_BYTES, b"not this");
    }
    assert_eq!(space.read(0, SIZE_BYTES).unwrap(), bytes);
    let after = space.engine.status().counts;
    assert!(after.runs_broken > 0 && after.wrong == after.repaired && after.wrong > 0, "{after:?}");
    assert_eq!(after.pages_together - counts.pages_together, pages - after.wrong);
}

#[test]
fn alternates_replicas_for_parts_of_a_long_read() {
    const PIECES: usize = 4;
    let len_bytes = PIECES << 20;
    let mut space = Space::with_slabs(len_bytes, 2, 2, |config| config.size_bytes = len_bytes as u64);
    let bytes = vec![7; len_bytes];
    for _ in 0..2 {
        space.write(0, &bytes);
    }
    // Pages that are read from this node are detected as wrong.
    for (_, slab) in space.nodes[0].granted() {
        (0..len_bytes).step_by(PAGE_BYTES).for_each(|at| slab.copy_in(at, b"not this"));
    }
    assert!(space.read(0, len_bytes).unwrap() == bytes);
    let counts = space.engine.status().counts;
    let half = (len_bytes / PAGE_BYTES / 2) as u64;
    assert_eq!((counts.wrong, counts.repaired), (half, half));
}

#[test]
fn enforces_node_limits_with_reasons() {
    let config = NodeConfig {
        slab_bytes: PAGE_BYTES,
        slabs: 3,
        term: Duration::from_secs(1),
        leases_max: 2,
        slabs_per_lease_max: 2,
        pairs_max: 2,
        ..NodeConfig::default()
    };
    let mut node = Node::new(Nic::open(&SoftNic::new()).unwrap(), config, 7);
    let mut call_node =
        |request: NodeRequest, ms: u64| node.handle(&request.to_bytes(), Nanos(ms * 1_000_000));
    let lease_of = |version| NodeRequest::Lease { version, name: "client".into() };
    let mut take = || match call_node(lease_of(wire::VERSION), 0) {
        Ok(Reply::Leased { incarnation: 7, lease, .. }) => lease,
        other => panic!("{other:?}"),
    };
    let (first, second) = (take(), take());
    assert_ne!(first, second);
    let kind = |result: Result<Reply, wire::Refusal>| result.unwrap_err().kind;
    assert_eq!(kind(call_node(lease_of(wire::VERSION), 0)), wire::RefusalKind::Limit);
    assert_eq!(kind(call_node(lease_of(99), 0)), wire::RefusalKind::Version);
    assert_eq!(
        kind(call_node(NodeRequest::Lease { version: 1, name: "x".repeat(65) }, 0)),
        wire::RefusalKind::Limit
    );
    let mut region = |lease, slab| match call_node(NodeRequest::Grant { lease, slab }, 100) {
        Ok(Reply::Granted { region, .. }) => Ok(region),
        Err(refusal) => Err(refusal.kind),
        other => panic!("{other:?}"),
    };
    let (one, two) = (region(first, 1).unwrap(), region(first, 2).unwrap());
    assert_eq!(region(first, 1), Ok(one), "asked again, the same");
    assert_ne!(one.rkey, two.rkey, "each has its own key");
    assert_eq!(region(first, 3), Err(wire::RefusalKind::Limit));
    assert_ne!(region(second, 1).unwrap().rkey, one.rkey);
    assert_eq!(region(second, 2), Err(wire::RefusalKind::NoRoom));
    // The first lease is renewed, the second one is not.
    call_node(NodeRequest::Renew { lease: first }, 900).unwrap();
    assert_eq!(kind(call_node(NodeRequest::Renew { lease: second }, 1_200)), wire::RefusalKind::UnknownLease);
    let status = match call_node(NodeRequest::Status, 1_200) {
        Ok(Reply::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!((status.room.free, status.expired, status.holders.len()), (1, 1, 1));
    call_node(NodeRequest::Return { lease: first, slab: 1 }, 1_200).unwrap();
    call_node(NodeRequest::Return { lease: first, slab: 1 }, 1_200).unwrap();
    call_node(NodeRequest::Drain { is_wanted: true }, 1_200).unwrap();
    assert_eq!(
        kind(call_node(NodeRequest::Grant { lease: first, slab: 9 }, 1_200)),
        wire::RefusalKind::Draining
    );
    call_node(NodeRequest::End { lease: first }, 1_200).unwrap();
    assert_eq!(kind(call_node(NodeRequest::End { lease: first }, 1_200)), wire::RefusalKind::UnknownLease);
    let unknown = NodeRequest::Connect { lease: first, pairs: Vec::new() };
    assert_eq!(kind(call_node(unknown, 1_200)), wire::RefusalKind::Limit);
    assert_eq!(node.granted().count(), 0);
}
