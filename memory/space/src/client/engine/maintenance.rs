//! Periodic maintenance: leases, deadlines of operations, placement of replicas, copies.

use std::time::Duration;

use farcall_verbs::Nanos;

use super::operation::{Aim, Operation};
use super::{Engine, LOOK_PERIOD};
use crate::client::PAGE_BYTES;
use crate::client::config::IoError;
use crate::client::extent::{Home, Replica, Standing};
use crate::client::node_client::{Call, Donor};
use crate::client::pages::Pages;

/// Additional delay of maintenance while the only work is extents whose missing replicas could not be created.
const SLOW_PERIOD: Duration = Duration::from_millis(200);
/// Time that a late operation has until its sessions are closed.
pub(super) const LATE_PERIOD: Duration = Duration::from_secs(1);

impl Engine {
    /// Returns the time of the next maintenance; `None` if none is needed.
    pub(super) fn look_due(&self) -> Option<Nanos> {
        let is_busy = self.operations.len() > self.unused.len()
            || self.requests.scrub.is_some()
            || !self.runs.is_empty();
        let is_filling =
            || self.extents.iter().flat_map(|extent| &extent.replicas).any(|replica| !replica.is_in_sync());
        if is_busy
            || self.is_noting_busy()
            || !self.leaving.is_empty()
            || self.reports.is_due()
            || is_filling()
        {
            return Some(self.look_at);
        }
        let is_whole = |extent: &crate::client::extent::Extent| {
            extent.replicas.len() == self.config.replicas
                && extent.replicas.iter().all(|replica| self.is_to_stay(replica))
        };
        let is_degraded = self.extents.iter().any(|extent| extent.is_touched && !is_whole(extent));
        let degraded = (is_degraded && !self.is_placement_fixed())
            .then_some(Nanos(self.look_at.0.saturating_add(SLOW_PERIOD.as_nanos() as u64)));
        Nanos::earlier(degraded, self.periodic_scrub_due())
    }

    /// Performs all maintenance. Returns whether operations are ready.
    pub(super) fn look(&mut self, now: Nanos) -> bool {
        self.look_at = now + LOOK_PERIOD;
        for node in 0..self.donors.len() {
            self.look_at_donor(node, now);
        }
        self.look_at_members(now);
        self.look_at_newcomers(now);
        self.look_at_deadlines(now);
        for extent in 0..self.extents.len() {
            if self.extents[extent].is_idle() || self.is_placement_fixed() {
                continue;
            }
            self.place_replicas(extent, now);
            self.leave_donors(extent, now);
            self.copy_pages(extent, now);
        }
        self.return_slabs();
        self.scrub(now);
        self.report_redundancy(now);
        !self.ready.is_empty()
    }

    fn look_at_donor(&mut self, node: usize, now: Nanos) {
        let donor = &self.donors[node];
        if let Some(end) = donor.session().and_then(|session| session.ended()) {
            let why = end.to_string();
            self.link_down(node, why, now);
        }
        if self.donors[node].lease.is_some_and(|lease| lease.until <= now) {
            self.lose_lease(node, "its lease could not be renewed in time".to_owned(), now);
        }
    }

    fn look_at_deadlines(&mut self, now: Nanos) {
        let mut stalled = self.runs.stalled(now);
        for (id, operation) in self.operations.iter_mut().enumerate() {
            let Some(operation) = operation else { continue };
            if operation.deadline > now {
                continue;
            }
            operation.is_late = true;
            operation.deadline = now + LATE_PERIOD;
            stalled.extend_from_slice(&operation.flying);
            self.ready.push_back(id as u32);
        }
        for serial in stalled {
            let mut donors = self.extents.iter().filter_map(|extent| extent.replica(serial)?.donor());
            if let Some(donor) = donors.next() {
                self.link_down(donor, "it did not answer in time".to_owned(), now);
            }
        }
    }

    /// Creates a replica, which is not part of the extent yet.
    pub(super) fn new_replica(&mut self, extent: usize, home: Home) -> Replica {
        self.last_serial += 1;
        Replica { serial: self.last_serial, home, standing: self.extents[extent].standing_of_new() }
    }

    /// Returns the page table of an extent, which is created when it is first needed.
    pub(super) fn pages_of(&mut self, extent: usize) -> &mut Pages {
        let count = self
            .pages_an_extent()
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
            self.place_for(extent, self.config.replicas, now);
        }
        let is_known = self.are_donors_known(now);
        let wanted = self.config.replicas;
        let extent = &mut self.extents[extent];
        // A node that is being connected is worth waiting for on the first write.
        let may_have_more = !extent.placing.is_empty() || (extent.replicas.len() < wanted && !is_known);
        if extent.replicas.is_empty() || (is_new && may_have_more) {
            return None;
        }
        extent.is_touched = true;
        Some(extent.replicas.iter().map(|replica| replica.serial).collect())
    }

    /// Suspends a write until its extent has a replica.
    pub(super) fn wait_for_place(
        &mut self,
        id: u32,
        operation: &Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        let page = Self::page_of(operation);
        let (extent, _) = self.place(page);
        let has_any = self.donors.iter().any(Donor::is_up);
        let is_empty = self.extents[extent].replicas.is_empty() && self.extents[extent].placing.is_empty();
        let is_hopeless = has_any && is_empty && self.are_donors_known(now);
        if is_hopeless || operation.is_late {
            return Some(Err(if has_any { IoError::NoRoom { page } } else { IoError::Unreachable { page } }));
        }
        self.extents[extent].waiting.push(id);
        None
    }

    /// Returns whether a replica counts in the long term: it is on a node that is not draining.
    fn is_to_stay(&self, replica: &Replica) -> bool {
        replica.donor().is_some_and(|donor| !self.donors[donor].room.is_draining)
    }

    /// Requests slabs for missing replicas of an extent.
    fn place_replicas(&mut self, at: usize, now: Nanos) {
        let extent = &self.extents[at];
        if (extent.is_touched && !extent.replicas.is_empty()) || !extent.waiting.is_empty() {
            self.place_for(at, self.config.replicas, now);
        }
        if self.extents[at].replicas.is_empty() || !self.extents[at].is_touched {
            // Operations that wait for the first replica may have to fail.
            self.wake(at);
        }
    }

    fn place_for(&mut self, at: usize, wanted: usize, now: Nanos) {
        let extent = &self.extents[at];
        let staying = extent.replicas.iter().filter(|replica| self.is_to_stay(replica)).count();
        let asked = extent.placing.iter().filter(|(donor, _)| !self.donors[*donor].room.is_draining).count();
        for _ in staying + asked..wanted {
            let Some(donor) = self.choose_donor(at) else { break };
            self.last_slab += 1;
            let slab = self.last_slab;
            self.donors[donor].room.free -= 1;
            self.donors[donor].calls.push_back(Call::Grant { extent: at, slab });
            self.extents[at].placing.push((donor, slab));
        }
        let is_without = self.extents[at].placing.is_empty()
            && !self.extents[at].replicas.iter().any(|r| self.is_to_stay(r) || r.donor().is_none());
        if is_without && self.spill.is_some() && self.are_donors_known(now) {
            self.spill_extent(at);
        }
    }

    /// Returns whether every node is connected, or has been unreachable for so long that it is not expected soon.
    fn are_donors_known(&self, now: Nanos) -> bool {
        let is_known = |donor: &Donor<_>| donor.is_up() || donor.down_for(now) > self.config.suspect_after;
        self.donors.iter().all(is_known)
    }

    /// Power of two choices: of two nodes chosen at random, returns the one with the larger share of free slabs.
    fn choose_donor(&mut self, at: usize) -> Option<usize> {
        let extent = &self.extents[at];
        let can = |donor: &usize| self.donors[*donor].has_room() && !extent.is_on(*donor);
        let mut candidates: Vec<usize> = (0..self.donors.len()).filter(can).collect();
        let mut draw = || {
            let count = candidates.len() as u64;
            (count > 0).then(|| candidates.swap_remove(self.rng.below(count) as usize))
        };
        let (first, second) = (draw()?, draw());
        let share = |donor: usize, of: usize| {
            u64::from(self.donors[donor].room.free) * u64::from(self.donors[of].room.slabs)
        };
        Some(match second {
            Some(second) if share(second, first) > share(first, second) => second,
            _ => first,
        })
    }

    fn spill_extent(&mut self, at: usize) {
        let Some(place) = self.spill.as_mut().map(|spill| spill.take()) else { return };
        let replica = self.new_replica(at, Home::File { place });
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
                .filter(|replica| replica.donor().is_none())
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
    fn leave_donors(&mut self, at: usize, now: Nanos) {
        let extent = &self.extents[at];
        if !extent.is_touched {
            return self.leave_untouched(at);
        }
        // A node may have crashed unnoticed. It counts only if it has replied to a call sent since the latest drain
        // began.
        let wishes = extent.replicas.iter().filter_map(|it| self.donors[it.donor()?].draining_since);
        let since = wishes.max().unwrap_or(Nanos(0));
        let is_there = |donor: usize| self.donors[donor].is_up() && self.donors[donor].heard_at >= since;
        let is_alive = |replica: &&Replica| replica.is_in_sync() && replica.donor().is_none_or(is_there);
        let is_draining = |donor: usize| self.donors[donor].room.is_draining;
        let alive = || extent.replicas.iter().filter(is_alive);
        let on_nodes = alive().filter(|replica| self.is_to_stay(replica)).count();
        let good = on_nodes + alive().filter(|replica| replica.donor().is_none()).count();
        // A draining node is left when as many replicas remain as are configured. One that drains by force is left
        // when as many remain as can exist.
        let can_have_more = !extent.placing.is_empty()
            || extent.replicas.iter().any(|replica| !replica.is_in_sync())
            || (0..self.donors.len()).any(|donor| self.donors[donor].has_room() && !extent.is_on(donor));
        let is_enough = |donor: usize| {
            let insists = self.donors[donor].room.is_forced();
            good >= self.config.replicas || (insists && good > 0 && !can_have_more)
        };
        let has_other = alive().next().is_some();
        let goes = |replica: &&Replica| match replica.donor() {
            None => on_nodes >= self.config.replicas,
            Some(donor) => {
                let is_lost = self.donors[donor].down_for(now) > self.config.suspect_after;
                (is_draining(donor) && is_enough(donor)) || (is_lost && has_other)
            }
        };
        let serials: Vec<u32> = extent.replicas.iter().filter(goes).map(|replica| replica.serial).collect();
        for serial in serials {
            self.drop_replica(at, serial);
        }
    }

    /// Drops the replicas of an extent without data that are on draining nodes or in the spill file.
    fn leave_untouched(&mut self, at: usize) {
        let serials: Vec<u32> = self.extents[at]
            .replicas
            .iter()
            .filter(|replica| !self.is_to_stay(replica))
            .map(|replica| replica.serial)
            .collect();
        serials.into_iter().for_each(|serial| self.drop_replica(at, serial));
    }

    fn drop_replica(&mut self, at: usize, serial: u32) {
        if let Some(replica) = self.remove_replica(at, serial) {
            self.counts.replicas_dropped += 1;
            self.leaving.push(replica);
            self.is_placement_new = true;
            self.wake(at);
        }
    }

    pub(super) fn remove_replica(&mut self, at: usize, serial: u32) -> Option<Replica> {
        let removed = self.extents[at].remove(serial);
        if self.noting.is_some() {
            self.leaving.extend(self.extents[at].take_unfilled());
        } else {
            self.extents[at].promote();
        }
        removed
    }

    /// Returns the slabs of dropped replicas that have no I/O in flight.
    fn return_slabs(&mut self) {
        let Self { leaving, flying, donors, spill, .. } = self;
        leaving.retain(|replica| {
            if flying.contains_key(&replica.serial) {
                return true;
            }
            match replica.home {
                Home::Node { donor, slab, .. } => donors[donor].calls.push_back(Call::Return { slab }),
                Home::Away { .. } => {}
                Home::File { place } => {
                    if let Some(spill) = spill {
                        spill.give_back(place);
                    }
                }
            }
            false
        });
    }

    /// Copies pages to replicas that are being filled.
    fn copy_pages(&mut self, at: usize, now: Nanos) {
        let first_page = at as u64 * self.pages_an_extent();
        for index in 0..self.extents[at].replicas.len() {
            while self.has_background_room() {
                let extent = &mut self.extents[at];
                let replica = &mut extent.replicas[index];
                let (serial, Standing::Filling { next, copying }) = (replica.serial, &mut replica.standing)
                else {
                    break;
                };
                let Some(page) = extent.pages.next_written(*next) else {
                    if *copying == 0 {
                        replica.standing = Standing::InSync;
                        self.is_placement_new = true;
                    }
                    break;
                };
                (*next, *copying) = (page + 1, *copying + 1);
                let deadline = now + self.config.patience;
                self.begin(Operation::new(first_page + page as u64, Aim::Copy { to: serial }, deadline));
            }
        }
    }
}
