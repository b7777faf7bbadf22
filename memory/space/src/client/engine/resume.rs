//! Recovery file ([`RecoveryFile`]): storage of the engine's state for a successor process, and resumption from it.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use farcall_link::Nic;
use farcall_verbs::Nanos;

use super::operation::{Operation, OperationKind};
use super::part::Part;
use super::{Engine, PageChecksums};
use crate::client::config::{ClientConfig, OpenError};
use crate::client::extent::{Replica, ReplicaLocation, ReplicaState};
use crate::client::node_client::{Call, Lease, MemoryNodeClient};
use crate::client::pages::Pages;
use crate::client::recovery_file::{PlacementSnapshot, RecoveryFile, SavedNode, SavedReplica};

impl Engine {
    /// Returns the address space of the last process that used this file, which must have exited; a new one if the
    /// file is empty. Writes that were in progress are repeated first. Leases are retained if they last until the
    /// nodes are reached. Nodes of the configuration that the earlier process did not know are added.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::new`]. Also fails if the file belongs to another address space.
    pub fn resume(nic: &Nic, mut config: ClientConfig, file: File, now: Nanos) -> Result<Self, OpenError> {
        config.check()?;
        let (mut recovery_file, placement) = RecoveryFile::open(file, &config)?;
        if let Some(placement) = &placement {
            let saved: Vec<String> = placement.nodes.iter().map(|node| node.address.clone()).collect();
            let fresh = std::mem::take(&mut config.nodes).into_iter().filter(|node| !saved.contains(node));
            config.nodes = saved.iter().cloned().chain(fresh).collect();
        }
        let unfinished = recovery_file.unfinished()?;
        let table = recovery_file.read_entries()?;
        let mut engine = Self::new(nic, config)?;
        match placement {
            Some(placement) => engine.restore_placement(placement, &table, now)?,
            None => engine.placement_dirty = true,
        }
        engine.recovery_file = Some(recovery_file);
        engine.save_placement();
        engine.repeat_writes(unfinished, now);
        Ok(engine)
    }

    fn restore_placement(
        &mut self,
        placement: PlacementSnapshot,
        table: &[(u64, u32)],
        now: Nanos,
    ) -> Result<(), OpenError> {
        let PlacementSnapshot { seed, last_serial, last_slab, nodes, replicas, releasing, uncertain_pages } =
            placement;
        (self.seed, self.checksums) = (seed, PageChecksums::new(seed));
        (self.last_serial, self.last_slab) = (last_serial, last_slab);
        self.uncertain_pages = uncertain_pages.into_iter().collect();
        for (client, saved) in self.nodes.iter_mut().zip(nodes) {
            // Conservative bound: it must not exceed the expiry at the node. Nothing at a node is used before it has
            // replied. The lease is renewed before the session is connected, so that the node's capacity is known.
            client.lease = saved.lease.map(|(key, term_ms)| {
                let term = Duration::from_millis(term_ms);
                Lease { key, term, until: now + term / 2 }
            });
        }
        let nodes = self.nodes.len();
        for (node, slab) in releasing {
            self.nodes.get_mut(node).ok_or_else(damaged)?.calls.push_back(Call::Return { slab });
        }
        for saved in replicas {
            let SavedReplica { extent, serial, node, slab, region, is_in_sync } = saved;
            let state = if is_in_sync {
                ReplicaState::InSync
            } else {
                ReplicaState::Resyncing { next: 0, copying: 0 }
            };
            let location = ReplicaLocation::Node { node, slab, region, grant: None };
            let extent = self.extents.get_mut(extent).filter(|_| node < nodes);
            let extent = extent.ok_or_else(damaged)?;
            extent.replicas.push(Replica { serial, location, state });
        }
        let pages_per_extent = self.pages_per_extent() as usize;
        for (extent, entries) in self.extents.iter_mut().zip(table.chunks(pages_per_extent)) {
            let is_written = entries.iter().any(|(_, generation)| *generation > 0);
            if is_written {
                extent.pages = Pages::from_entries(entries);
            }
            // An extent with a replica may have been written to.
            extent.is_touched = is_written || !extent.replicas.is_empty();
        }
        Ok(())
    }

    fn placement(&self) -> PlacementSnapshot {
        let replicas =
            self.extents.iter().enumerate().flat_map(|(extent, of)| {
                of.replicas.iter().filter_map(move |replica| saved(extent, replica))
            });
        let of_node = |replica: &Replica| match replica.location {
            ReplicaLocation::Node { node, slab, .. } => Some((node, slab)),
            ReplicaLocation::Away { .. } | ReplicaLocation::File { .. } => None,
        };
        let node = |client: &MemoryNodeClient<_>| SavedNode {
            address: client.address.clone(),
            lease: client.lease.map(|lease| (lease.key, lease.term.as_millis() as u64)),
        };
        PlacementSnapshot {
            seed: self.seed,
            last_serial: self.last_serial,
            last_slab: self.last_slab,
            nodes: self.nodes.iter().map(node).collect(),
            replicas: replicas.collect(),
            releasing: self.releasing.iter().filter_map(of_node).collect(),
            uncertain_pages: self.uncertain_pages.iter().map(|(page, sums)| (*page, sums.clone())).collect(),
        }
    }

    /// Stores the placement if it has changed, before anything that depends on it is reported.
    pub(super) fn save_placement(&mut self) {
        if self.recovery_file.is_none() || !std::mem::take(&mut self.placement_dirty) {
            return;
        }
        let placement = self.placement();
        if let Some(recovery_file) = &mut self.recovery_file {
            recovery_file.write_placement(&placement);
        }
    }

    /// Stores the checksums and generations of pages.
    pub(super) fn save_pages(&mut self, pages: Range<u64>) {
        let Self { recovery_file: Some(recovery_file), extents, config, .. } = self else { return };
        let per_extent = config.slab_bytes / super::PAGE_BYTES as u64;
        let entry =
            |page: u64| extents[(page / per_extent) as usize].pages.entry((page % per_extent) as usize);
        if !pages.is_empty() {
            recovery_file.write_entries(pages.start, pages.map(entry));
        }
    }

    /// Stores the complete content of a page that is written in part.
    pub(super) fn save_part(&mut self, operation: &Operation) {
        if let (Some(recovery_file), OperationKind::Write(part), Some(bytes)) =
            (&mut self.recovery_file, operation.kind(), operation.bytes())
            && let Some(end) = part.end
        {
            recovery_file.save_page(part.request, end, bytes);
        }
    }

    /// Records that such a page has been written, before the next operation gets it.
    pub(super) fn record_part_done(&mut self, part: &Part, page: u64) {
        let Some(end) = part.end.filter(|_| self.recovery_file.is_some()) else { return };
        self.save_placement();
        self.save_pages(page..page + 1);
        if let Some(recovery_file) = &mut self.recovery_file {
            recovery_file.mark_page_done(part.request, end);
        }
    }
}

fn damaged() -> OpenError {
    OpenError::Saved("it is damaged".to_owned())
}

fn saved(extent: usize, replica: &Replica) -> Option<SavedReplica> {
    let ReplicaLocation::Node { node, slab, region, .. } = replica.location else { return None };
    let (serial, is_in_sync) = (replica.serial, replica.is_in_sync());
    Some(SavedReplica { extent, serial, node, slab, region, is_in_sync })
}
