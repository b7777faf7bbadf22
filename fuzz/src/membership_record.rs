//! Arbitrary keys and values of etcd, as a record and as a node's address: no panic, bounded results, and an accepted
//! value can be read again after it is written.

use farcall_memory::membership::{NODES_MAX, Record};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    if let Ok(record) = Record::parse(bytes) {
        assert!(record.nodes().len() <= NODES_MAX, "more nodes than are looked at");
        assert_eq!(Record::parse(&record.to_bytes()).expect("our own"), record);
    }
    if let Ok(node) = Record::parse_node(bytes) {
        assert_eq!(Record::parse_node(node.to_string().as_bytes()).expect("our own"), node);
    }
}
