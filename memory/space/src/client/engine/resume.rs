//! Recovery file ([`Keep`]): storage of the engine's state for a successor process, and resumption from it.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use farcall_link::Nic;
use farcall_verbs::Nanos;

use super::operation::{Aim, Operation};
use super::requests::Part;
use super::{Engine, Sums};
use crate::client::config::{ClientConfig, OpenError};
use crate::client::extent::{Home, Replica, Standing};
use crate::client::node_client::{Call, Donor, Lease};
use crate::client::pages::Pages;
use crate::client::recovery_file::{Keep, KeptNode, KeptReplica, Placement};

impl Engine {
    /// Returns the address space of the last process that used this file, which must have exited; a new one if the
    /// file is empty. Writes that were in progress are repeated first. Leases are retained if they last until the
    /// nodes are reached. Nodes of the configuration that the earlier process did not know are added.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::new`]. Also fails if the file belongs to another address space.
    pub fn resume(nic: &Nic, mut config: ClientConfig, file: File, now: Nanos) -> Result<Self, OpenError> {
        config.check()?;
        let (mut keep, placement) = Keep::open(file, &config)?;
        if let Some(placement) = &placement {
            let kept: Vec<String> = placement.nodes.iter().map(|node| node.address.clone()).collect();
            let fresh = std::mem::take(&mut config.nodes).into_iter().filter(|node| !kept.contains(node));
            config.nodes = kept.iter().cloned().chain(fresh).collect();
        }
        let unfinished = keep.unfinished()?;
        let table = keep.table()?;
        let mut engine = Self::new(nic, config)?;
        match placement {
            Some(placement) => engine.take_over(placement, &table, now)?,
            None => engine.is_placement_new = true,
        }
        engine.keep = Some(keep);
        engine.keep_placement();
        engine.redo(unfinished, now);
        Ok(engine)
    }

    fn take_over(&mut self, placement: Placement, table: &[(u64, u32)], now: Nanos) -> Result<(), OpenError> {
        let Placement { seed, last_serial, last_slab, nodes, replicas, leaving, unsure } = placement;
        (self.seed, self.sums) = (seed, Sums::new(seed));
        (self.last_serial, self.last_slab) = (last_serial, last_slab);
        self.unsure = unsure.into_iter().collect();
        for (donor, node) in self.donors.iter_mut().zip(nodes) {
            // Conservative bound: it must not exceed the expiry at the node. Nothing at a node is used before it has
            // replied. The lease is renewed before the session is connected, so that the node's capacity is known.
            donor.lease = node.lease.map(|(key, term_ms)| {
                let term = Duration::from_millis(term_ms);
                Lease { key, term, until: now + term / 2 }
            });
        }
        let nodes = self.donors.len();
        for (donor, slab) in leaving {
            self.donors.get_mut(donor).ok_or_else(damaged)?.calls.push_back(Call::Return { slab });
        }
        for kept in replicas {
            let KeptReplica { extent, serial, donor, slab, region, is_in_sync } = kept;
            let standing =
                if is_in_sync { Standing::InSync } else { Standing::Filling { next: 0, copying: 0 } };
            let home = Home::Node { donor, slab, region, grant: None };
            let extent = self.extents.get_mut(extent).filter(|_| donor < nodes);
            let extent = extent.ok_or_else(damaged)?;
            extent.replicas.push(Replica { serial, home, standing });
        }
        let pages_an_extent = self.pages_an_extent() as usize;
        for (extent, entries) in self.extents.iter_mut().zip(table.chunks(pages_an_extent)) {
            let is_written = entries.iter().any(|(_, generation)| *generation > 0);
            if is_written {
                extent.pages = Pages::of(entries);
            }
            // An extent with a replica may have been written to.
            extent.is_touched = is_written || !extent.replicas.is_empty();
        }
        Ok(())
    }

    fn placement(&self) -> Placement {
        let replicas = self
            .extents
            .iter()
            .enumerate()
            .flat_map(|(extent, of)| of.replicas.iter().filter_map(move |replica| kept(extent, replica)));
        let of_node = |replica: &Replica| match replica.home {
            Home::Node { donor, slab, .. } => Some((donor, slab)),
            Home::Away { .. } | Home::File { .. } => None,
        };
        let node = |donor: &Donor<_>| KeptNode {
            address: donor.address.clone(),
            lease: donor.lease.map(|lease| (lease.key, lease.term.as_millis() as u64)),
        };
        Placement {
            seed: self.seed,
            last_serial: self.last_serial,
            last_slab: self.last_slab,
            nodes: self.donors.iter().map(node).collect(),
            replicas: replicas.collect(),
            leaving: self.leaving.iter().filter_map(of_node).collect(),
            unsure: self.unsure.iter().map(|(page, sums)| (*page, sums.clone())).collect(),
        }
    }

    /// Stores the placement if it has changed, before anything that depends on it is reported.
    pub(super) fn keep_placement(&mut self) {
        if self.keep.is_none() || !std::mem::take(&mut self.is_placement_new) {
            return;
        }
        let placement = self.placement();
        if let Some(keep) = &mut self.keep {
            keep.place(&placement);
        }
    }

    /// Stores the checksums and generations of pages.
    pub(super) fn keep_pages(&mut self, pages: Range<u64>) {
        let Self { keep: Some(keep), extents, config, .. } = self else { return };
        let an_extent = config.slab_bytes / super::PAGE_BYTES as u64;
        let entry = |page: u64| extents[(page / an_extent) as usize].pages.entry((page % an_extent) as usize);
        if !pages.is_empty() {
            keep.pages(pages.start, pages.map(entry));
        }
    }

    /// Stores the complete content of a page that is written in part.
    pub(super) fn keep_part(&mut self, operation: &Operation) {
        if let (Some(keep), Aim::Write(part), Some(bytes)) =
            (&mut self.keep, operation.aim(), operation.bytes())
            && let Some(end) = part.end
        {
            keep.record(part.request, end, bytes);
        }
    }

    /// Records that such a page has been written, before the next operation gets it.
    pub(super) fn part_over(&mut self, part: &Part, page: u64) {
        let Some(end) = part.end.filter(|_| self.keep.is_some()) else { return };
        self.keep_placement();
        self.keep_pages(page..page + 1);
        if let Some(keep) = &mut self.keep {
            keep.done(part.request, end);
        }
    }
}

fn damaged() -> OpenError {
    OpenError::Kept("it is damaged".to_owned())
}

fn kept(extent: usize, replica: &Replica) -> Option<KeptReplica> {
    let Home::Node { donor, slab, region, .. } = replica.home else { return None };
    let (serial, is_in_sync) = (replica.serial, replica.is_in_sync());
    Some(KeptReplica { extent, serial, donor, slab, region, is_in_sync })
}
