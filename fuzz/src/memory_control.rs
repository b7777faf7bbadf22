//! Arbitrary requests to a memory node, and arbitrary replies to a client: no panic. The node grants no more memory
//! than it has, and the client reads what it wrote or gets an error.
//!
//! An input is a sequence of messages: the recipient, the length and the bytes. The node's first lease has the same
//! key in every run, so that inputs can name it.

use std::time::Duration;

use farcall_link::{Entropy, Nic};
use farcall_memory::wire::{Request as Asked, VERSION};
use farcall_memory::{ClientConfig, Engine, Node, NodeConfig, PAGE_BYTES, Request, Work};
use farcall_softnic::SoftNic;
use farcall_verbs::{Endpoint, Nanos};

const SLABS: u32 = 3;

thread_local! {
    static NIC: Nic = Nic::open(&SoftNic::new()).expect("the software RNIC");
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let nic = NIC.with(Nic::clone).with_entropy(Entropy::seeded(1));
    let donated = NodeConfig {
        slab_bytes: PAGE_BYTES,
        slabs: SLABS,
        term: Duration::from_millis(20),
        leases_max: 2,
        slabs_per_lease_max: 2,
        pairs_max: 2,
        volumes_max: 1,
        metadata_bytes_max: 2 * PAGE_BYTES as u64,
    };
    let mut node = Node::new(nic.clone(), donated, 7);
    let lease = Asked::Lease { version: VERSION, name: "fuzz".into() };
    let _ = node.handle(&lease.to_bytes(), Nanos(0));
    let config = ClientConfig {
        nodes: vec!["node".into()],
        size_bytes: 4 * PAGE_BYTES as u64,
        slab_bytes: PAGE_BYTES as u64,
        pool_bytes: 16 * PAGE_BYTES,
        patience: Duration::from_millis(40),
        ..ClientConfig::default()
    };
    let mut engine = Engine::new(&nic, config).expect("an engine");
    let write = Request { token: 1, offset: 5, work: Work::Write(vec![1; PAGE_BYTES].into()) };
    engine.submit(write, Nanos(0)).expect("room for one request");
    let mut now = Nanos(0);
    let mut rest = bytes;
    while let [whom, len, more @ ..] = rest {
        let (message, after) = more.split_at((*len as usize).min(more.len()));
        rest = after;
        now = now + Duration::from_millis(1);
        if whom % 2 == 0 {
            let _ = node.handle(message, now);
            assert!(node.granted().count() <= SLABS as usize, "more slabs than there are");
            assert!(node.status(now).volumes.len() <= 1, "more volumes than are kept");
        } else {
            let _ = engine.next_call(now);
            engine.on_reply(0, Ok(message.to_vec()), now);
            engine.progress(now);
        }
    }
    // All requests complete eventually, whatever the messages contained.
    for _ in 0..200 {
        now = now + Duration::from_millis(20);
        engine.progress(now);
        node.tick(now);
    }
    assert_eq!(node.granted().count(), 0, "leases end");
}
