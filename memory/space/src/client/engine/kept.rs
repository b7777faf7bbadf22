//! What the engine notes for a process after this one ([`Keep`]), and how that one begins.

use std::fs::File;
use std::ops::Range;
use std::time::Duration;

use farcall_link::Nic;
use farcall_verbs::Nanos;

use super::operation::{Aim, Operation};
use super::requests::Part;
use super::{Engine, Sums};
use crate::client::config::{ClientConfig, OpenError};
use crate::client::donor::{Call, Donor, Lease};
use crate::client::extent::{Home, Replica, Standing};
use crate::client::keep::{Keep, KeptNode, KeptReplica, Placement};
use crate::client::pages::Pages;

impl Engine {
    /// The address space of the last process that used this file, which has ended; a new one if the file is empty.
    /// Writes that it had begun are done first. What it held of nodes is held on, if leases last until nodes are
    /// reached; nodes of the configuration that it did not know join.
    ///
    /// # Errors
    /// As [`Engine::new`], or if the file is of another address space.
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
            // It lasts no longer than the node says: until a node has answered nothing of it is used. It is renewed at once,
            // before the session: then it is known how much room there is.
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
            // Something may have been stored where a replica is.
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

    /// Notes where pages are, if that has changed: before anybody hears of what rests upon it.
    pub(super) fn keep_placement(&mut self) {
        if self.keep.is_none() || !std::mem::take(&mut self.is_placement_new) {
            return;
        }
        let placement = self.placement();
        if let Some(keep) = &mut self.keep {
            keep.place(&placement);
        }
    }

    /// Notes what pages hold.
    pub(super) fn keep_pages(&mut self, pages: Range<u64>) {
        let Self { keep: Some(keep), extents, config, .. } = self else { return };
        let an_extent = config.slab_bytes / super::PAGE_BYTES as u64;
        let entry = |page: u64| extents[(page / an_extent) as usize].pages.entry((page % an_extent) as usize);
        if !pages.is_empty() {
            keep.pages(pages.start, pages.map(entry));
        }
    }

    /// Notes the whole of a page of which a part is written.
    pub(super) fn keep_part(&mut self, operation: &Operation) {
        if let (Some(keep), Aim::Write(part), Some(bytes)) =
            (&mut self.keep, operation.aim(), operation.bytes())
            && let Some(end) = part.end
        {
            keep.record(part.request, end, bytes);
        }
    }

    /// Such a page is over, and the next one's.
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
