//! Damaged metadata of a volume: the next client is refused, or reads what was written, or gets an error. A completely
//! erased entry looks like a page that was never written.
//!
//! An input is a sequence of modifications: the offset in two bytes, the length in one byte, and the bytes.

use std::time::Duration;

use farcall_link::bootstrap::Secret;
use farcall_link::{Entropy, Nic};
use farcall_memory::wire::{Reply, Request as NodeRequest};
use farcall_memory::{
    ClientConfig, Engine, IoError, Node, NodeCallError, NodeConfig, PAGE_BYTES, Request, VolumeConfig, Work,
};
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, Nanos};

const PAGES: u64 = 4;
const TERM: Duration = Duration::from_secs(1_000);
const LONG: Duration = Duration::from_secs(3_000);
const METADATA_BYTES: u64 = PAGE_BYTES as u64;
const WRITTEN: [u8; 2 * PAGE_BYTES] = [7; 2 * PAGE_BYTES];

thread_local! {
    static NIC: Nic = Nic::open(&SoftNic::new()).expect("the software RNIC");
}

/// One node, and its current time.
struct World {
    node: Node,
    now: Nanos,
}

impl World {
    fn call_node(&mut self, request: &NodeRequest) -> Result<Reply, NodeCallError> {
        self.node.handle(&request.to_bytes(), self.now).map_err(NodeCallError::Refused)
    }

    fn claim(&mut self, holder: u8) -> Option<Engine> {
        let nic = NIC.with(Nic::clone).with_entropy(Entropy::seeded(holder.into()));
        let config = ClientConfig {
            nodes: vec!["node".into()],
            size_bytes: PAGES * PAGE_BYTES as u64,
            slab_bytes: 2 * PAGE_BYTES as u64,
            pool_bytes: 16 * PAGE_BYTES,
            connections: 1,
            // Connections take time that this world does not count.
            suspect_after: LONG,
            patience: LONG,
            ..ClientConfig::default()
        };
        let now = self.now;
        Engine::claim(&nic, config, &volume(holder), |_, request| self.call_node(request), || now)
            .ok()
            .map(|(engine, _)| engine)
    }

    fn run(&mut self, engine: &mut Engine, request: Request) -> Result<Vec<u8>, IoError> {
        engine.submit(request, self.now).expect("room for one request");
        for _ in 0..1_000_000 {
            self.now = self.now + Duration::from_micros(100);
            while let Some((_, bytes)) = engine.next_call(self.now) {
                let reply = self.node.handle(&bytes, self.now).map(|reply| reply.to_bytes());
                engine.on_reply(0, reply.map_err(NodeCallError::Refused), self.now);
            }
            engine.progress(self.now);
            if let Some(ended) = engine.next_completed() {
                return ended.result;
            }
        }
        panic!("a request is never over")
    }

    fn wait_for_lease(&mut self) {
        self.now = self.now + TERM;
        self.node.tick(self.now);
    }
}

fn volume(holder: u8) -> VolumeConfig {
    VolumeConfig::new("fuzz".into(), [3; 32], [holder; 16], METADATA_BYTES)
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let donated = NodeConfig { slab_bytes: 2 * PAGE_BYTES, slabs: 4, term: TERM, ..NodeConfig::default() };
    let nic = NIC.with(Nic::clone).with_entropy(Entropy::seeded(9));
    let mut world = World { node: Node::new(nic, donated, 7), now: Nanos(0) };
    let mut engine = world.claim(1).expect("a new volume");
    let write = Request { token: 1, offset: 0, work: Work::Write(WRITTEN.to_vec().into()) };
    world.run(&mut engine, write).expect("it is written");
    drop(engine);
    world.wait_for_lease();
    damage(&mut world, bytes);
    let Some(mut engine) = world.claim(2) else { return };
    for page in 0..2 {
        let work = Work::Read { len_bytes: PAGE_BYTES };
        let read = world.run(&mut engine, Request { token: 2, offset: page * PAGE_BYTES as u64, work });
        if let Ok(found) = read {
            assert!(
                found == WRITTEN[..PAGE_BYTES] || found == [0; PAGE_BYTES],
                "page {page} has other bytes"
            );
        }
    }
}

/// Overwrites metadata, as the holder of the lease may.
fn damage(world: &mut World, bytes: &[u8]) {
    let Ok(Reply::VolumeState { volume: Some(volume_state) }) = world.call_node(&NodeRequest::QueryVolume {
        version: farcall_memory::wire::VERSION,
        volume: volume(3).to_ref(),
    }) else {
        panic!("the node keeps the volume")
    };
    let claim = NodeRequest::Claim {
        volume: volume(3).to_ref(),
        name: String::new(),
        holder: Secret([3; 16]),
        epoch: volume_state.epoch + 1,
        node: volume_state.node,
        metadata_bytes: volume_state.metadata_bytes,
    };
    let Ok(Reply::Claimed { lease, .. }) = world.call_node(&claim) else { panic!("it is claimed") };
    let mut rest = bytes;
    while let [low, high, len, more @ ..] = rest {
        let (bytes, after) = more.split_at((*len as usize).min(more.len()));
        rest = after;
        let offset = u64::from(u16::from_le_bytes([*low, *high]));
        // A write beyond the end is refused.
        let _ = world.call_node(&NodeRequest::WriteMetadata { lease, offset, bytes: bytes.to_vec() });
    }
    world.call_node(&NodeRequest::End { lease }).expect("it ends");
}
