//! Extents of the address space, each of the length of a slab, and their replicas.

use farcall_link::RemoteRegion;

use super::pages::Pages;

/// The pages of one extent.
#[derive(Default)]
pub(super) struct Extent {
    pub pages: Pages,
    pub replicas: Vec<Replica>,
    /// Requested slabs: index of the node, and the number of the slab chosen by this client.
    pub requested_slabs: Vec<(usize, u64)>,
    /// `true` if the extent may have been written to, so that a new replica must be filled.
    pub is_touched: bool,
    /// Operations that wait for a replica.
    pub waiting: Vec<u32>,
}

pub(super) struct Replica {
    /// Identifier of the replica, unique within the client.
    pub serial: u32,
    pub location: ReplicaLocation,
    pub state: ReplicaState,
}

/// Location of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplicaLocation {
    Node {
        node: usize,
        slab: u64,
        region: RemoteRegion,
        /// Number of the slab in the open session; `None` if there is none.
        grant: Option<u32>,
    },
    /// A node whose lease has ended. It is not known whether the node still has the slab. The replica is not accessed
    /// until the node grants the slab again.
    Away { node: usize, slab: u64 },
    /// Slot in the spill file.
    File { slot: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaState {
    /// The replica has every write that was acknowledged.
    InSync,
    /// The replica has every write since its creation, and receives copies of the earlier ones.
    Resyncing {
        /// Pages before this index have been copied, or are being copied.
        next: usize,
        /// Number of copies in progress.
        copying: u32,
    },
}

impl Replica {
    pub fn is_in_sync(&self) -> bool {
        self.state == ReplicaState::InSync
    }

    /// Returns the index of its node; `None` for a replica in the spill file.
    pub const fn node(&self) -> Option<usize> {
        match self.location {
            ReplicaLocation::Node { node, .. } | ReplicaLocation::Away { node, .. } => Some(node),
            ReplicaLocation::File { .. } => None,
        }
    }

    /// Returns whether the replica waits until its node grants the slab again.
    pub const fn is_away(&self) -> bool {
        matches!(self.location, ReplicaLocation::Away { .. })
    }

    /// Returns whether the replica can be read and written now.
    pub const fn is_reachable(&self) -> bool {
        matches!(self.location, ReplicaLocation::Node { grant: Some(_), .. } | ReplicaLocation::File { .. })
    }
}

impl Extent {
    pub fn replica(&self, serial: u32) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.serial == serial)
    }

    pub fn replica_mut(&mut self, serial: u32) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|replica| replica.serial == serial)
    }

    /// Returns whether the extent needs no maintenance.
    pub const fn is_idle(&self) -> bool {
        !self.is_touched && self.waiting.is_empty() && self.replicas.is_empty()
    }

    /// Returns whether a node has a replica of the extent, or a slab for one was requested from it.
    pub fn is_on(&self, node: usize) -> bool {
        self.replicas.iter().any(|replica| replica.node() == Some(node))
            || self.requested_slabs.iter().any(|(of, _)| *of == node)
    }

    /// Removes a replica and returns it.
    pub fn remove(&mut self, serial: u32) -> Option<Replica> {
        let at = self.replicas.iter().position(|replica| replica.serial == serial)?;
        Some(self.replicas.remove(at))
    }

    fn has_any_in_sync(&self) -> bool {
        self.replicas.iter().any(Replica::is_in_sync)
    }

    /// Returns whether pages were written and no other replica than this one is in sync.
    pub fn depends_on(&self, serial: u32) -> bool {
        let mut others = self.replicas.iter().filter(|replica| replica.serial != serial);
        !others.any(Replica::is_in_sync) && self.pages.next_written(0).is_some()
    }

    /// Returns whether pages were written and no replica is left.
    pub fn is_lost(&self) -> bool {
        self.replicas.is_empty() && self.is_touched && self.pages.next_written(0).is_some()
    }

    /// Returns the replica that waits until the node `of` grants the slab `number` again.
    pub fn away_mut(&mut self, of: usize, number: u64) -> Option<&mut Replica> {
        let is_it = |location: ReplicaLocation| matches!(location, ReplicaLocation::Away { node, slab } if (node, slab) == (of, number));
        self.replicas.iter_mut().find(|replica| is_it(replica.location))
    }

    /// Marks all replicas as in sync if none is: what they have is all that is left.
    pub fn promote(&mut self) {
        if !self.has_any_in_sync() {
            self.replicas.iter_mut().for_each(|replica| replica.state = ReplicaState::InSync);
        }
    }

    /// Removes and returns all replicas if none is in sync. In a volume they cannot be used: a page that they lack
    /// would be taken for one that was never written.
    pub fn take_if_none_in_sync(&mut self) -> Vec<Replica> {
        if self.has_any_in_sync() { Vec::new() } else { std::mem::take(&mut self.replicas) }
    }

    /// Returns the initial state of a new replica.
    pub fn initial_state(&self) -> ReplicaState {
        if self.is_touched && !self.replicas.is_empty() {
            ReplicaState::Resyncing { next: 0, copying: 0 }
        } else {
            ReplicaState::InSync
        }
    }
}
