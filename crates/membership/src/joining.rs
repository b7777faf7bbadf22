//! Nodes that register later.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farcall_memory::RemoteMemory;

use crate::directory::Directory;
use crate::etcd::Etcd;
use crate::rounds::Rounds;

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
        let (etcd, memory) = (directory.etcd(), Arc::downgrade(memory));
        let mut seen = Seen { directory, etcd, memory, known: BTreeSet::new(), is_away: false };
        let rounds = Rounds::start("etcd-joining", LOOK_PERIOD, move || seen.look())?;
        Ok(Self { _rounds: rounds })
    }
}

struct Seen {
    directory: Directory,
    etcd: Etcd,
    memory: Weak<RemoteMemory>,
    /// Those that were there at the last look.
    known: BTreeSet<SocketAddr>,
    is_away: bool,
}

impl Seen {
    fn look(&mut self) {
        let found = self.directory.nodes_by(&self.etcd);
        if let Err(error) = &found
            && !self.is_away
        {
            tracing::warn!(directory = %self.directory, "nodes that register are not found: {error}");
        }
        self.is_away = found.is_err();
        let (Ok(nodes), Some(memory)) = (found, self.memory.upgrade()) else { return };
        let nodes = BTreeSet::from_iter(nodes);
        nodes.difference(&self.known).for_each(|node| join(&memory, *node));
        self.known = nodes;
    }
}

fn join(memory: &RemoteMemory, node: SocketAddr) {
    match memory.join(&node.to_string()) {
        Ok(true) => tracing::info!(%node, "a memory node joined"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%node, "a memory node cannot join: {error}"),
    }
}
