//! Discovery of nodes through a real etcd.

#[path = "support/etcd_server.rs"]
mod etcd_server;

use std::net::SocketAddr;
use std::sync::Arc;

use etcd_server::{EtcdServer, LOST, until};
use farcall_link::Nic;
use farcall_memory::membership::{Directory, NodeDiscovery, Registration};
use farcall_memory::{ClientConfig, MemoryServer, NodeConfig, PAGE_BYTES, RemoteMemory};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn directory(etcd: &EtcdServer) -> Directory {
    etcd.directory("test").parse().unwrap()
}

fn node() -> MemoryServer {
    let donated = NodeConfig { slab_bytes: 1 << 20, slabs: 8, ..NodeConfig::default() };
    MemoryServer::start(&nic(), "127.0.0.1:0", donated).unwrap()
}

#[test]
fn lists_registered_nodes_and_keeps_used_ones_without_etcd() {
    let data = tempfile::tempdir().unwrap();
    let Some(mut etcd) = EtcdServer::start(data.path()) else { return };
    let directory = directory(&etcd);
    assert_eq!(directory.nodes().unwrap(), []);
    let nodes = [node(), node()];
    let [first, second] = [0, 1].map(|at| nodes[at].address());
    let registered = Registration::start(&directory, first).unwrap();
    assert_eq!(directory.nodes().unwrap(), [first]);
    let config = ClientConfig {
        nodes: vec![first.to_string()],
        nodes_max: 4,
        size_bytes: 1 << 20,
        slab_bytes: 1 << 20,
        patience: LOST,
        ..ClientConfig::default()
    };
    let memory = Arc::new(RemoteMemory::open(&nic(), config).unwrap());
    memory.write(0, &[1; 3 * PAGE_BYTES]).unwrap();
    assert_eq!(memory.status().degraded, 1, "one node cannot have two replicas");
    let joining = NodeDiscovery::start(directory.clone(), &memory).unwrap();
    let other = Registration::start(&directory, second).unwrap();
    until("the second node has a replica", || memory.status().degraded == 0);

    etcd.kill();
    memory.write(0, &[2; 2 * PAGE_BYTES]).unwrap();
    let mut found = [0; 3 * PAGE_BYTES];
    memory.read(0, &mut found).unwrap();
    assert!(found[..2 * PAGE_BYTES].iter().all(|byte| *byte == 2));
    // etcd has lost its data: nodes register again.
    let empty = tempfile::tempdir().unwrap();
    etcd.start_again(empty.path());
    until("both are registered again", || directory.nodes().unwrap().len() == 2);

    drop(other);
    assert_eq!(directory.nodes().unwrap(), [first], "who ends is not found any more");
    drop(registered);
    assert_eq!(directory.nodes().unwrap(), []);
    memory.read(0, &mut found).unwrap();
    assert_eq!(memory.status().nodes.len(), 2, "a key that goes says nothing of its node");
    drop(joining);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn records_the_nodes_of_a_volume_until_forgotten() {
    let data = tempfile::tempdir().unwrap();
    let Some(etcd) = EtcdServer::start(data.path()) else { return };
    let directory = directory(&etcd);
    let nodes: Vec<SocketAddr> = vec!["10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()];
    assert_eq!(directory.nodes_of_volume("files").unwrap(), []);
    directory.record_volume("files", nodes.clone()).unwrap();
    assert_eq!(directory.nodes_of_volume("files").unwrap(), nodes);
    assert_eq!(directory.nodes_of_volume("other").unwrap(), []);
    assert_eq!(directory.nodes().unwrap(), [], "a volume is no node");
    directory.forget_volume("files").unwrap();
    assert_eq!(directory.nodes_of_volume("files").unwrap(), []);
}
