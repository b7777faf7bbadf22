//! A slab's worth of the address space, and its replicas.

use farcall_link::RemoteRegion;

use super::pages::Pages;

/// A slab's worth of pages.
#[derive(Default)]
pub(super) struct Extent {
    pub pages: Pages,
    pub replicas: Vec<Replica>,
    /// Slabs that were asked for: of which node, and what we call them.
    pub placing: Vec<(usize, u64)>,
    /// Something may have been stored: a new replica has to be filled.
    pub is_touched: bool,
    /// Operations that wait for a replica.
    pub waiting: Vec<u32>,
}

pub(super) struct Replica {
    /// Of this replica and no other of the client.
    pub serial: u32,
    pub home: Home,
    pub standing: Standing,
}

/// Where a replica is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    Node {
        donor: usize,
        slab: u64,
        region: RemoteRegion,
        /// Its number in the session that is open, if one is.
        grant: Option<u32>,
    },
    /// A node whose lease has ended, and whether the node still has the slab is not known: no access before it grants
    /// the slab again.
    Away { donor: usize, slab: u64 },
    /// The spill file: which place of it.
    File { place: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has every write that was acknowledged.
    InSync,
    /// It has every write since it exists, and gets copies of the rest.
    Filling {
        /// Pages before that were copied, or are being.
        next: usize,
        /// How many are being.
        copying: u32,
    },
}

impl Replica {
    pub fn is_in_sync(&self) -> bool {
        self.standing == Standing::InSync
    }

    /// The node that it is on.
    pub const fn donor(&self) -> Option<usize> {
        match self.home {
            Home::Node { donor, .. } | Home::Away { donor, .. } => Some(donor),
            Home::File { .. } => None,
        }
    }

    /// Whether it waits for its node to grant the slab again.
    pub const fn is_away(&self) -> bool {
        matches!(self.home, Home::Away { .. })
    }

    /// Whether it can be read and written now.
    pub const fn is_reachable(&self) -> bool {
        matches!(self.home, Home::Node { grant: Some(_), .. } | Home::File { .. })
    }
}

impl Extent {
    pub fn replica(&self, serial: u32) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.serial == serial)
    }

    pub fn replica_mut(&mut self, serial: u32) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|replica| replica.serial == serial)
    }

    /// Whether there is nothing to look after.
    pub const fn is_idle(&self) -> bool {
        !self.is_touched && self.waiting.is_empty() && self.replicas.is_empty()
    }

    /// Whether a node has a replica of it, or was asked for one.
    pub fn is_on(&self, donor: usize) -> bool {
        self.replicas.iter().any(|replica| replica.donor() == Some(donor))
            || self.placing.iter().any(|(of, _)| *of == donor)
    }

    /// Forgets a replica.
    pub fn remove(&mut self, serial: u32) -> Option<Replica> {
        let at = self.replicas.iter().position(|replica| replica.serial == serial)?;
        Some(self.replicas.remove(at))
    }

    fn has_any_in_sync(&self) -> bool {
        self.replicas.iter().any(Replica::is_in_sync)
    }

    /// Whether pages were written of which no replica but this one is in sync.
    pub fn depends_on(&self, serial: u32) -> bool {
        let mut others = self.replicas.iter().filter(|replica| replica.serial != serial);
        !others.any(Replica::is_in_sync) && self.pages.next_written(0).is_some()
    }

    /// Whether pages were written of which no replica is left.
    pub fn is_lost(&self) -> bool {
        self.replicas.is_empty() && self.is_touched && self.pages.next_written(0).is_some()
    }

    /// The replica that waits for its node to grant a slab again.
    pub fn away_mut(&mut self, of: usize, number: u64) -> Option<&mut Replica> {
        let is_it = |home: Home| matches!(home, Home::Away { donor, slab } if (donor, slab) == (of, number));
        self.replicas.iter_mut().find(|replica| is_it(replica.home))
    }

    /// If none is left that is in sync, what another one has so far is all that there is.
    pub fn promote(&mut self) {
        if !self.has_any_in_sync() {
            self.replicas.iter_mut().for_each(|replica| replica.standing = Standing::InSync);
        }
    }

    /// If none is left that is in sync, the others are of no use where a page that they lack would look like one that
    /// was never written.
    pub fn take_unfilled(&mut self) -> Vec<Replica> {
        if self.has_any_in_sync() { Vec::new() } else { std::mem::take(&mut self.replicas) }
    }

    /// How a new replica begins.
    pub fn standing_of_new(&self) -> Standing {
        if self.is_touched && !self.replicas.is_empty() {
            Standing::Filling { next: 0, copying: 0 }
        } else {
            Standing::InSync
        }
    }
}
