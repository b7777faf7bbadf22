//! Periodic maintenance: leases, deadlines of operations, placement of replicas, copies.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::operation::{Operation, OperationKind};
use super::{Engine, LATE_INTERVAL, MAINTENANCE_INTERVAL};
use crate::client::PAGE_BYTES;
use crate::client::config::IoError;
use crate::client::extent::{Replica, ReplicaLocation, ReplicaState};
use crate::client::node_client::{Call, MemoryNodeClient};
use crate::client::pages::Pages;

/// Additional delay of maintenance while the only work is extents whose missing replicas could not be created.
const DEGRADED_DELAY: Duration = Duration::from_millis(200);

impl Engine {
    /// Returns the time of the next maintenance; `None` if none is needed.
    pub(super) fn next_maintenance(&self) -> Option<Nanos> {
        let is_busy = self.operations.len() > self.unused.len()
            || self.requests.scrub.is_some()
            || !self.runs.is_empty();
        let is_filling =
            || self.extents.iter().flat_map(|extent| &extent.replicas).any(|replica| !replica.is_in_sync());
        if is_busy
            || self.must_check_members()
            || self.must_replay()
            || !self.releasing.is_empty()
            || self.reports.is_due()
            || is_filling()
        {
            return Some(self.next_maintenance_at);
        }
        let is_whole = |extent: &crate::client::extent::Extent| {
            extent.replicas.len() == self.config.replicas
                && extent.replicas.iter().all(|replica| self.is_lasting(replica))
        };
        let is_degraded = self.extents.iter().any(|extent| extent.is_touched && !is_whole(extent));
        let degraded = (is_degraded && !self.is_placement_fixed())
            .then_some(Nanos(self.next_maintenance_at.0.saturating_add(DEGRADED_DELAY.as_nanos() as u64)));
        Nanos::earlier(degraded, self.periodic_scrub_due())
    }

    /// Performs all maintenance. Returns whether operations are ready.
    pub(super) fn run_maintenance(&mut self, now: Nanos) -> bool {
        self.next_maintenance_at = now + MAINTENANCE_INTERVAL;
        for node in 0..self.nodes.len() {
            self.check_node(node, now);
        }
        self.check_members(now);
        self.check_joining_node(now);
        self.check_deadlines(now);
        self.replay_pending(now);
        for extent in 0..self.extents.len() {
            if self.extents[extent].is_idle() || self.is_placement_fixed() {
                continue;
            }
            self.replace_missing_replicas(extent, now);
            self.drop_replaceable_replicas(extent, now);
            self.copy_pages(extent, now);
        }
        self.return_slabs();
        self.scrub(now);
        self.report_redundancy(now);
        !self.ready.is_empty()
    }

    fn check_node(&mut self, node: usize, now: Nanos) {
        let client = &self.nodes[node];
        if let Some(end) = client.session().and_then(|session| session.ended()) {
            let why = end.to_string();
            self.end_session(node, why, now);
        }
        if self.nodes[node].lease.is_some_and(|lease| lease.until <= now) {
            self.lose_lease(node, "its lease could not be renewed in time".to_owned(), now);
        }
    }

    fn check_deadlines(&mut self, now: Nanos) {
        let mut stalled = self.runs.stalled(now);
        for (id, operation) in self.operations.iter_mut().enumerate() {
            let Some(operation) = operation else { continue };
            if operation.deadline > now {
                continue;
            }
            operation.is_late = true;
            operation.deadline = now + LATE_INTERVAL;
            stalled.extend_from_slice(&operation.in_flight);
            self.ready.push_back(id as u32);
        }
        for serial in stalled {
            let mut holders = self.extents.iter().filter_map(|extent| extent.replica(serial)?.node());
            if let Some(node) = holders.next() {
                self.end_session(node, "it did not answer in time".to_owned(), now);
            }
        }
    }

    /// Creates a replica, which is not part of the extent yet.
    pub(super) fn new_replica(&mut self, extent: usize, location: ReplicaLocation) -> Replica {
        self.last_serial += 1;
        Replica { serial: self.last_serial, location, state: self.extents[extent].initial_state() }
    }

    /// Returns the page table of an extent, which is created when it is first needed.
    pub(super) fn pages_of(&mut self, extent: usize) -> &mut Pages {
        let count = self
            .pages_per_extent()
            .min((self.config.size_bytes - extent as u64 * self.config.slab_bytes) / PAGE_BYTES as u64);
        let pages = &mut self.extents[extent].pages;
        if pages.table_bytes() == 0 {
            *pages = Pages::new(count as usize);
        }
        pages
    }

    /// Returns the replicas that a write must reach; `None` if it must wait for one.
    pub(super) fn write_targets(&mut self, extent: usize, now: Nanos) -> Option<Vec<u32>> {
        let is_new = !self.extents[extent].is_touched;
        if is_new || self.extents[extent].replicas.is_empty() {
            self.request_slabs(extent, self.config.replicas, now);
        }
        let is_known = self.are_nodes_known(now);
        let wanted = self.config.replicas;
        let extent = &mut self.extents[extent];
        // A node that is being connected is worth waiting for on the first write.
        let may_have_more =
            !extent.requested_slabs.is_empty() || (extent.replicas.len() < wanted && !is_known);
        if extent.replicas.is_empty() || (is_new && may_have_more) {
            return None;
        }
        extent.is_touched = true;
        Some(extent.replicas.iter().map(|replica| replica.serial).collect())
    }

    /// Suspends a write until its extent has a replica.
    pub(super) fn wait_for_replica(
        &mut self,
        id: u32,
        operation: &Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        let page = Self::page_of(operation);
        let (extent, _) = self.locate(page);
        let has_any = self.nodes.iter().any(MemoryNodeClient::is_up);
        let is_empty =
            self.extents[extent].replicas.is_empty() && self.extents[extent].requested_slabs.is_empty();
        let is_hopeless = has_any && is_empty && self.are_nodes_known(now);
        if is_hopeless || operation.is_late {
            return Some(Err(if has_any { IoError::NoRoom { page } } else { IoError::Unreachable { page } }));
        }
        self.extents[extent].waiting.push(id);
        None
    }

    /// Returns whether a replica counts in the long term: it is on a node that is not draining.
    fn is_lasting(&self, replica: &Replica) -> bool {
        replica.node().is_some_and(|node| !self.nodes[node].room.is_draining)
    }

    /// Requests slabs for missing replicas of an extent.
    fn replace_missing_replicas(&mut self, at: usize, now: Nanos) {
        let extent = &self.extents[at];
        if (extent.is_touched && !extent.replicas.is_empty()) || !extent.waiting.is_empty() {
            self.request_slabs(at, self.config.replicas, now);
        }
        if self.extents[at].replicas.is_empty() || !self.extents[at].is_touched {
            // Operations that wait for the first replica may have to fail.
            self.wake(at);
        }
    }

    fn request_slabs(&mut self, at: usize, wanted: usize, now: Nanos) {
        let extent = &self.extents[at];
        let staying = extent.replicas.iter().filter(|replica| self.is_lasting(replica)).count();
        let requested =
            extent.requested_slabs.iter().filter(|(node, _)| !self.nodes[*node].room.is_draining).count();
        for _ in staying + requested..wanted {
            let Some(node) = self.choose_node(at) else { break };
            self.last_slab += 1;
            let slab = self.last_slab;
            self.nodes[node].room.free -= 1;
            self.nodes[node].calls.push_back(Call::Grant { extent: at, slab });
            self.extents[at].requested_slabs.push((node, slab));
        }
        let is_without = self.extents[at].requested_slabs.is_empty()
            && !self.extents[at].replicas.iter().any(|r| self.is_lasting(r) || r.node().is_none());
        if is_without && self.spill.is_some() && self.are_nodes_known(now) {
            self.spill_extent(at);
        }
    }

    /// Returns whether every node is connected, or has been unreachable for so long that it is not expected soon.
    fn are_nodes_known(&self, now: Nanos) -> bool {
        let is_known = |client: &MemoryNodeClient<_>| {
            client.is_up() || client.disconnected_for(now) > self.config.suspect_after
        };
        self.nodes.iter().all(is_known)
    }

    /// Power of two choices: of two nodes chosen at random, returns the one with the larger share of free slabs.
    fn choose_node(&mut self, at: usize) -> Option<usize> {
        let extent = &self.extents[at];
        let can = |node: &usize| self.nodes[*node].has_room() && !extent.is_on(*node);
        let mut candidates: Vec<usize> = (0..self.nodes.len()).filter(can).collect();
        let mut draw = || {
            let count = candidates.len() as u64;
            (count > 0).then(|| candidates.swap_remove(self.rng.below(count) as usize))
        };
        let (first, second) = (draw()?, draw());
        let share = |node: usize, of: usize| {
            u64::from(self.nodes[node].room.free) * u64::from(self.nodes[of].room.slabs)
        };
        Some(match second {
            Some(second) if share(second, first) > share(first, second) => second,
            _ => first,
        })
    }

    fn spill_extent(&mut self, at: usize) {
        let Some(slot) = self.spill.as_mut().map(|spill| spill.allocate()) else { return };
        let replica = self.new_replica(at, ReplicaLocation::File { slot });
        self.extents[at].replicas.push(replica);
        self.wake(at);
    }

    /// Stops using the spill file after an error.
    pub(super) fn spill_failed(&mut self) {
        self.spill = None;
        for extent in &mut self.extents {
            let serials: Vec<u32> = extent
                .replicas
                .iter()
                .filter(|replica| replica.node().is_none())
                .map(|replica| replica.serial)
                .collect();
            for serial in serials {
                extent.remove(serial);
            }
            extent.promote();
            self.ready.extend(extent.waiting.drain(..));
        }
    }

    /// Drops replicas that others can replace: on draining nodes, in the spill file, or unreachable for too long.
    fn drop_replaceable_replicas(&mut self, at: usize, now: Nanos) {
        let extent = &self.extents[at];
        if !extent.is_touched {
            return self.drop_empty_replicas(at);
        }
        // A node may have crashed unnoticed. It counts only if it has replied to a call sent since the latest drain
        // began.
        let drains = extent.replicas.iter().filter_map(|it| self.nodes[it.node()?].draining_since);
        let since = drains.max().unwrap_or(Nanos(0));
        let is_there = |node: usize| self.nodes[node].is_up() && self.nodes[node].last_reply_at >= since;
        let is_alive = |replica: &&Replica| replica.is_in_sync() && replica.node().is_none_or(is_there);
        let is_draining = |node: usize| self.nodes[node].room.is_draining;
        let alive = || extent.replicas.iter().filter(is_alive);
        let on_nodes = alive().filter(|replica| self.is_lasting(replica)).count();
        let good = on_nodes + alive().filter(|replica| replica.node().is_none()).count();
        // A draining node is left when as many replicas remain as are configured. One that drains by force is left
        // when as many remain as can exist.
        let can_have_more = !extent.requested_slabs.is_empty()
            || extent.replicas.iter().any(|replica| !replica.is_in_sync())
            || (0..self.nodes.len()).any(|node| self.nodes[node].has_room() && !extent.is_on(node));
        let is_enough = |node: usize| {
            let insists = self.nodes[node].room.is_forced();
            good >= self.config.replicas || (insists && good > 0 && !can_have_more)
        };
        let has_other = alive().next().is_some();
        let is_dropped = |replica: &&Replica| match replica.node() {
            None => on_nodes >= self.config.replicas,
            Some(node) => {
                let is_lost = self.nodes[node].disconnected_for(now) > self.config.suspect_after;
                (is_draining(node) && is_enough(node)) || (is_lost && has_other)
            }
        };
        let serials: Vec<u32> =
            extent.replicas.iter().filter(is_dropped).map(|replica| replica.serial).collect();
        for serial in serials {
            self.drop_replica(at, serial);
        }
    }

    /// Drops the replicas of an extent without data that are on draining nodes or in the spill file.
    fn drop_empty_replicas(&mut self, at: usize) {
        let serials: Vec<u32> = self.extents[at]
            .replicas
            .iter()
            .filter(|replica| !self.is_lasting(replica))
            .map(|replica| replica.serial)
            .collect();
        serials.into_iter().for_each(|serial| self.drop_replica(at, serial));
    }

    fn drop_replica(&mut self, at: usize, serial: u32) {
        if let Some(replica) = self.remove_replica(at, serial) {
            self.counts.replicas_dropped += 1;
            self.releasing.push(replica);
            self.placement_dirty = true;
            self.wake(at);
        }
    }

    pub(super) fn remove_replica(&mut self, at: usize, serial: u32) -> Option<Replica> {
        let removed = self.extents[at].remove(serial);
        if self.metadata.is_some() {
            self.releasing.extend(self.extents[at].take_if_none_in_sync());
        } else {
            self.extents[at].promote();
        }
        removed
    }

    /// Returns the slabs of dropped replicas that have no I/O in flight.
    fn return_slabs(&mut self) {
        let Self { releasing, in_flight, nodes, spill, .. } = self;
        releasing.retain(|replica| {
            if in_flight.contains_key(&replica.serial) {
                return true;
            }
            match replica.location {
                ReplicaLocation::Node { node, slab, .. } => {
                    nodes[node].calls.push_back(Call::Return { slab })
                }
                ReplicaLocation::Away { .. } => {}
                ReplicaLocation::File { slot } => {
                    if let Some(spill) = spill {
                        spill.free_slot(slot);
                    }
                }
            }
            false
        });
    }

    /// Copies pages to replicas that are being filled.
    fn copy_pages(&mut self, at: usize, now: Nanos) {
        let first_page = at as u64 * self.pages_per_extent();
        for index in 0..self.extents[at].replicas.len() {
            while self.has_background_room() {
                let extent = &mut self.extents[at];
                let replica = &mut extent.replicas[index];
                let (serial, ReplicaState::Resyncing { next, copying }) =
                    (replica.serial, &mut replica.state)
                else {
                    break;
                };
                let Some(page) = extent.pages.next_written(*next) else {
                    if *copying == 0 {
                        replica.state = ReplicaState::InSync;
                        self.placement_dirty = true;
                    }
                    break;
                };
                (*next, *copying) = (page + 1, *copying + 1);
                let deadline = now + self.config.patience;
                self.begin(Operation::new(
                    first_page + page as u64,
                    OperationKind::Copy { to: serial },
                    deadline,
                ));
            }
        }
    }
}
