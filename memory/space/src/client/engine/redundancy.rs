//! Redundancy of the address space: reported to nodes, which show it to operators, and written to the log.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::Engine;
use crate::client::extent::{Extent, Replica};
use crate::client::node_client::Call;
use crate::wire::Redundancy;

/// Minimum interval between two reports to one node: while slabs are copied, the number of them changes often.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// State of the slab with the least redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RedundancyState {
    #[default]
    InSync,
    /// Replicas are missing, and some are being created.
    Copying,
    /// Replicas are missing, and none can be created now.
    Degraded,
    /// A slab has no replica left.
    Lost,
}

/// State of the reports.
#[derive(Default)]
pub(super) struct RedundancyReports {
    logged: RedundancyState,
    /// `true` if some node does not have the latest report yet.
    is_due: bool,
}

impl RedundancyReports {
    pub const fn is_due(&self) -> bool {
        self.is_due
    }
}

impl Engine {
    /// Returns the redundancy of the address space.
    pub(super) fn redundancy(&self) -> Redundancy {
        let mut redundancy = Redundancy { replicas: self.config.replicas as u32, ..Redundancy::default() };
        let used = self.extents.iter().zip(0..).filter(|(extent, _)| extent.is_touched);
        for (extent, number) in used {
            let has_all = |replica: &&Replica| replica.is_in_sync() && !replica.is_away();
            let in_sync = extent.replicas.iter().filter(has_all).count();
            // Not all replicas have the content of a pending page.
            let first = number * self.pages_per_extent();
            let is_pending = self.redo.has_pending(first..first + self.pages_per_extent());
            let is_copying = is_pending
                || !extent.requested_slabs.is_empty()
                || extent.replicas.iter().any(|replica| !replica.is_in_sync());
            redundancy.slabs += 1;
            redundancy.degraded += u32::from(in_sync < self.config.replicas || is_pending);
            redundancy.copying += u32::from(is_copying);
            redundancy.lost += u32::from(extent.replicas.is_empty());
        }
        redundancy
    }

    /// Returns whether every replica is in sync and reachable, and none is missing.
    pub(super) fn is_fully_replicated(&self) -> bool {
        let is_whole = |extent: &Extent| {
            let can_be_read = |replica: &Replica| replica.is_in_sync() && replica.is_reachable();
            extent.replicas.len() >= self.config.replicas && extent.replicas.iter().all(can_be_read)
        };
        self.extents.iter().filter(|extent| extent.is_touched).all(is_whole)
    }

    /// Reports the redundancy if it has changed.
    pub(super) fn report_redundancy(&mut self, now: Nanos) {
        let redundancy = self.redundancy();
        self.log_redundancy(redundancy);
        self.reports.is_due = false;
        for node in 0..self.nodes.len() {
            let held_back = self.slabs_held_back(node);
            let client = &mut self.nodes[node];
            let (scrubs, repaired) = (client.scrubs.complete, self.counts.repaired);
            let is_scrubbing = client.scrubs.begun > scrubs;
            let scrubbed =
                if is_scrubbing { self.requests.scrubbed_for_nodes() } else { client.scrubs.pages };
            let redundancy = Redundancy { held_back, scrubs, scrubbed, repaired, ..redundancy };
            if !client.supports_reports || !client.is_up() || client.lease.is_none() || client.is_ending {
                continue;
            }
            if client.reported == Some(redundancy) || client.calls.contains(&Call::Report) {
                continue;
            }
            if now < client.report_at {
                self.reports.is_due = true;
                continue;
            }
            (client.reported, client.report_at) = (Some(redundancy), now + REPORT_INTERVAL);
            client.calls.push_back(Call::Report);
        }
    }

    fn log_redundancy(&mut self, redundancy: Redundancy) {
        let Redundancy { replicas, slabs, degraded, copying, lost, .. } = redundancy;
        let state = match redundancy {
            Redundancy { lost: 1.., .. } => RedundancyState::Lost,
            Redundancy { degraded: 1.., copying: 1.., .. } => RedundancyState::Copying,
            Redundancy { degraded: 1.., .. } => RedundancyState::Degraded,
            _ => RedundancyState::InSync,
        };
        if std::mem::replace(&mut self.reports.logged, state) == state {
            return;
        }
        let client = &self.config.name;
        match state {
            RedundancyState::InSync => {
                tracing::info!(client, "all {slabs} slabs have {replicas} replicas in sync");
            }
            RedundancyState::Copying => tracing::info!(
                client,
                "{degraded} of {slabs} slabs have fewer than {replicas} replicas in sync; {copying} are being copied"
            ),
            RedundancyState::Degraded => tracing::warn!(
                client,
                "{degraded} of {slabs} slabs have fewer than {replicas} replicas in sync, and no other node has room; \
                 start memory nodes, or more of them"
            ),
            RedundancyState::Lost => tracing::error!(
                client,
                "{lost} of {slabs} slabs have no replica any more: reading them fails"
            ),
        }
    }

    /// Returns the number of slabs that stay on a draining node because fewer replicas than configured would remain
    /// and none can be created elsewhere.
    fn slabs_held_back(&self, node: usize) -> u32 {
        let room = self.nodes[node].room;
        if !room.is_draining || room.is_forced() {
            return 0;
        }
        let is_held_back = |extent: &&Extent| {
            extent.is_touched
                && extent.requested_slabs.is_empty()
                && extent.replicas.iter().all(Replica::is_in_sync)
                && extent.replicas.iter().any(|replica| replica.node() == Some(node))
                && self.lasting_replicas(extent) < self.config.replicas
                && !(0..self.nodes.len()).any(|other| self.nodes[other].has_room() && !extent.is_on(other))
        };
        self.extents.iter().filter(is_held_back).count() as u32
    }

    fn lasting_replicas(&self, extent: &Extent) -> usize {
        let stays = |replica: &&Replica| replica.node().is_none_or(|node| !self.nodes[node].room.is_draining);
        extent.replicas.iter().filter(stays).count()
    }
}
