//! Nodes that register later.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::directory::Directory;
use super::etcd::{Etcd, EtcdError};
use super::rounds::Rounds;
use crate::RemoteMemory;

/// How often etcd is asked.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// Has nodes that register join an address space, until this is dropped.
pub struct Joining {
    _rounds: Rounds,
}

impl Joining {
    /// Begins at once with those that are registered. The address space is not kept open by this.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(directory: Directory, memory: &Arc<RemoteMemory>) -> io::Result<Self> {
        Self::start_with(directory, memory, None)
    }

    /// As [`Joining::start`], for a volume: that a node may have it is noted in etcd before it joins
    /// ([`Directory::note_volume`]).
    ///
    /// # Errors
    /// As there.
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

struct Seen {
    directory: Directory,
    etcd: Etcd,
    memory: Weak<RemoteMemory>,
    volume: Option<String>,
    /// Those that were there at the last look.
    known: BTreeSet<SocketAddr>,
    is_away: bool,
}

impl Seen {
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

    /// Notes that these nodes may have the volume, too.
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
