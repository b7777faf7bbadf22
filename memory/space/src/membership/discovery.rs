//! Joining of nodes that register after an address space was opened.

use farcall_verbs::with_sources;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::directory::Directory;
use super::etcd::{Etcd, EtcdError};
use super::periodic::PeriodicTask;
use crate::RemoteMemory;

/// Interval between queries of etcd.
const QUERY_INTERVAL: Duration = Duration::from_secs(2);

/// Until this value is dropped, nodes that register join an address space.
pub struct NodeDiscovery {
    _task: PeriodicTask,
}

impl NodeDiscovery {
    /// Starts a thread that queries etcd, the first time immediately. The thread does not keep the address space open.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(directory: Directory, memory: &Arc<RemoteMemory>) -> io::Result<Self> {
        Self::start_with(directory, memory, None)
    }

    /// Like [`NodeDiscovery::start`], for a volume: before a node joins, etcd records that it may have the volume
    /// ([`Directory::record_volume`]).
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start_for_volume(
        directory: Directory,
        memory: &Arc<RemoteMemory>,
        volume: String,
    ) -> io::Result<Self> {
        Self::start_with(directory, memory, Some(volume))
    }

    fn start_with(
        directory: Directory,
        memory: &Arc<RemoteMemory>,
        volume: Option<String>,
    ) -> io::Result<Self> {
        let (etcd, memory) = (directory.etcd(), Arc::downgrade(memory));
        let mut seen =
            KnownNodes { directory, etcd, memory, volume, known: BTreeSet::new(), is_failing: false };
        let task = PeriodicTask::start("etcd-joining", QUERY_INTERVAL, move || seen.query())?;
        Ok(Self { _task: task })
    }
}

/// State of the thread.
struct KnownNodes {
    directory: Directory,
    etcd: Etcd,
    memory: Weak<RemoteMemory>,
    /// Name of the volume; `None` if the address space is not a volume.
    volume: Option<String>,
    /// Nodes that the last successful query returned.
    known: BTreeSet<SocketAddr>,
    /// Whether the last query failed. Only the first failure of a series is logged.
    is_failing: bool,
}

impl KnownNodes {
    /// Queries etcd, and lets the nodes that were not known join.
    fn query(&mut self) {
        let found = self.directory.nodes_by(&self.etcd).and_then(|nodes| {
            let nodes = BTreeSet::from_iter(nodes);
            self.record_nodes(nodes.difference(&self.known).copied())?;
            Ok(nodes)
        });
        if let Err(error) = &found
            && !self.is_failing
        {
            tracing::warn!(directory = %self.directory, "nodes that register are not found: {error}");
        }
        self.is_failing = found.is_err();
        let (Ok(nodes), Some(memory)) = (found, self.memory.upgrade()) else { return };
        nodes.difference(&self.known).for_each(|node| join(&memory, *node));
        self.known = nodes;
    }

    /// Adds these nodes to the record of the volume.
    fn record_nodes(&self, nodes: impl Iterator<Item = SocketAddr>) -> Result<(), EtcdError> {
        let (Some(volume), mut nodes) = (&self.volume, nodes.peekable()) else { return Ok(()) };
        if nodes.peek().is_none() {
            return Ok(());
        }
        let mut recorded = self.directory.nodes_of_volume(volume)?;
        let before = recorded.len();
        recorded.extend(nodes.filter(|node| !recorded.contains(node)).collect::<Vec<_>>());
        if recorded.len() == before { Ok(()) } else { self.directory.record_volume(volume, recorded) }
    }
}

fn join(memory: &RemoteMemory, node: SocketAddr) {
    match memory.join(&node.to_string()) {
        Ok(true) => tracing::info!(%node, "a memory node joined"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%node, "a memory node cannot join: {}", with_sources(&error)),
    }
}
