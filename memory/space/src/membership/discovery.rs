//! Joining of nodes that register after an address space was opened.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::directory::Directory;
use super::etcd::{Etcd, EtcdError};
use super::periodic::Rounds;
use crate::RemoteMemory;

/// Interval between queries of etcd.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Until this value is dropped, nodes that register join an address space.
pub struct Joining {
    _rounds: Rounds,
}

impl Joining {
    /// Starts a thread that queries etcd, the first time immediately. The thread does not keep the address space open.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(directory: Directory, memory: &Arc<RemoteMemory>) -> io::Result<Self> {
        Self::start_with(directory, memory, None)
    }

    /// Like [`Joining::start`], for a volume: before a node joins, etcd records that it may have the volume
    /// ([`Directory::note_volume`]).
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn of_volume(directory: Directory, memory: &Arc<RemoteMemory>, volume: String) -> io::Result<Self> {
        Self::start_with(directory, memory, Some(volume))
    }

    fn start_with(
        directory: Directory,
        memory: &Arc<RemoteMemory>,
        volume: Option<String>,
    ) -> io::Result<Self> {
        let (etcd, memory) = (directory.etcd(), Arc::downgrade(memory));
        let mut seen = Seen { directory, etcd, memory, volume, known: BTreeSet::new(), is_away: false };
        let rounds = Rounds::start("etcd-joining", LOOK_PERIOD, move || seen.look())?;
        Ok(Self { _rounds: rounds })
    }
}

/// State of the thread.
struct Seen {
    directory: Directory,
    etcd: Etcd,
    memory: Weak<RemoteMemory>,
    /// Name of the volume; `None` if the address space is not a volume.
    volume: Option<String>,
    /// Nodes that the last successful query returned.
    known: BTreeSet<SocketAddr>,
    /// Whether the last query failed. Only the first failure of a series is logged.
    is_away: bool,
}

impl Seen {
    /// Queries etcd, and lets the nodes that were not known join.
    fn look(&mut self) {
        let found = self.directory.nodes_by(&self.etcd).and_then(|nodes| {
            let nodes = BTreeSet::from_iter(nodes);
            self.note(nodes.difference(&self.known).copied())?;
            Ok(nodes)
        });
        if let Err(error) = &found
            && !self.is_away
        {
            tracing::warn!(directory = %self.directory, "nodes that register are not found: {error}");
        }
        self.is_away = found.is_err();
        let (Ok(nodes), Some(memory)) = (found, self.memory.upgrade()) else { return };
        nodes.difference(&self.known).for_each(|node| join(&memory, *node));
        self.known = nodes;
    }

    /// Adds these nodes to the record of the volume.
    fn note(&self, nodes: impl Iterator<Item = SocketAddr>) -> Result<(), EtcdError> {
        let (Some(volume), mut nodes) = (&self.volume, nodes.peekable()) else { return Ok(()) };
        if nodes.peek().is_none() {
            return Ok(());
        }
        let mut noted = self.directory.nodes_of_volume(volume)?;
        let before = noted.len();
        noted.extend(nodes.filter(|node| !noted.contains(node)).collect::<Vec<_>>());
        if noted.len() == before { Ok(()) } else { self.directory.note_volume(volume, noted) }
    }
}

fn join(memory: &RemoteMemory, node: SocketAddr) {
    match memory.join(&node.to_string()) {
        Ok(true) => tracing::info!(%node, "a memory node joined"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%node, "a memory node cannot join: {error}"),
    }
}
