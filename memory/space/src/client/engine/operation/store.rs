//! An operation stores the bytes of its page to replicas.

use farcall_verbs::Nanos;

use super::{Aim, Operation, Stage};
use crate::client::config::IoError;
use crate::client::engine::Engine;
use crate::client::extent::Replica;

/// Contents of an unsure page that are kept in mind.
const UNSURE_MAX: usize = 8;

impl Engine {
    /// Writes what a page of a volume holds to the replicas that differ from it. Such a replica may hold the content of the
    /// older entry, which the note of a write replaces: if this client and the node of the other replica exited after
    /// the note, no replica would match an entry.
    pub(super) fn repair(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        if !self.store_left(id, operation, now) {
            return self.wait(id, operation);
        }
        let (extent, at) = self.place(operation.page);
        self.extents[extent].pages.settle(at);
        self.count_repairs(operation);
        operation.wrong.retain(|serial| !operation.stored.contains(serial));
        operation.right.append(&mut operation.stored);
        self.put_part(operation);
        operation.stage = Stage::Storing;
        None
    }

    pub(super) fn store(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        if operation.is_noting() {
            return None;
        }
        let (extent, _) = self.place(operation.page);
        if operation.is_write() && !operation.was_posted {
            // A new slab would look like one that has the other pages of the extent, too.
            if self.noting.is_some() && self.extents[extent].is_lost() {
                return Some(Err(IoError::Lost { page: operation.page }));
            }
            // At first all slabs that were asked for are waited for; an extent without any waits for one.
            let Some(targets) = self.write_targets(extent, now) else {
                return self.wait_for_place(id, operation, now);
            };
            operation.left = targets;
            // Of what a page holds the last replica that has it is overwritten last.
            operation.left.sort_by_key(|serial| !operation.wrong.contains(serial));
            self.keep_part(operation);
            if !operation.is_noted() && operation.is_late {
                return Some(Err(IoError::Unreachable { page: operation.page }));
            }
            if !self.note_page(id, operation, now) {
                return None;
            }
        }
        if self.store_left(id, operation, now) {
            return self.stored(id, operation, now);
        }
        if !operation.flying.is_empty() {
            return None;
        }
        // The user has what he asked for, and a repair that fails is tried again by the next read.
        if operation.is_late
            && matches!(operation.aim, Aim::Read(_) | Aim::Scrub { .. })
            && !self.is_unsettled(operation.page)
        {
            return Some(Ok(()));
        }
        self.wait(id, operation)
    }

    /// Begins to store to the replicas that are left. Returns whether none is left.
    fn store_left(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> bool {
        // Of a volume one after another: a client that exits in between leaves the others whole.
        let at_once = if operation.is_write() && self.noting.is_some() { 1 } else { usize::MAX };
        let (extent, _) = self.place(operation.page);
        let extent = &self.extents[extent];
        operation.left.retain(|serial| extent.replica(*serial).is_some());
        let is_reachable = |serial: &&u32| extent.replica(**serial).is_some_and(Replica::is_reachable);
        let next = operation.left.iter().take(at_once);
        let to: Vec<u32> = next.filter(is_reachable).copied().collect();
        if !operation.is_late {
            for serial in to {
                if !operation.flying.contains(&serial) {
                    self.write_page(id, operation, serial, now);
                }
            }
        }
        operation.flying.is_empty() && operation.left.is_empty()
    }

    /// Nothing is left to be stored.
    fn stored(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> Option<Result<(), IoError>> {
        let (extent, at) = self.place(operation.page);
        if !operation.is_write() {
            self.extents[extent].pages.settle(at);
            return Some(Ok(()));
        }
        let extent = &self.extents[extent];
        if !operation.stored.iter().any(|serial| extent.replica(*serial).is_some()) {
            // Whoever had it is gone. Others may be there, or come.
            operation.was_posted = false;
            return if operation.is_late { self.wait(id, operation) } else { self.store(id, operation, now) };
        }
        // Who came meanwhile has it, too: no copy is made of a page that was not written when it came.
        let is_missing = |serial: &u32| !operation.stored.contains(serial);
        let missing: Vec<u32> =
            extent.replicas.iter().map(|replica| replica.serial).filter(is_missing).collect();
        if !missing.is_empty() {
            operation.left = missing;
            return self.store(id, operation, now);
        }
        let sum = self.sum_of(operation);
        let (extent, _) = self.place(operation.page);
        self.pages_of(extent).written(at, sum);
        self.is_placement_new |= self.unsure.remove(&operation.page).is_some();
        Some(Ok(()))
    }

    pub(in super::super) fn sum_of(&self, operation: &Operation) -> u64 {
        operation.bytes.as_ref().map_or(0, |bytes| self.sums.of(operation.page, bytes))
    }

    /// A write failed: its replicas hold what they held, or what was written, or neither.
    pub(super) fn leave_unsure(&mut self, operation: &Operation) {
        self.may_hold(operation.page, self.sum_of(operation));
    }

    /// A page holds what it held, or something else that was written.
    pub(in super::super) fn may_hold(&mut self, page: u64, sum: u64) {
        let (extent, at) = self.place(page);
        let before = self.extents[extent].pages.sum(at).unwrap_or_else(|| self.sums.of_zeros(page));
        if self.noting.is_some() {
            let pages = self.pages_of(extent);
            pages.written(at, sum);
            return pages.unsettle(at, before);
        }
        let sums = self.unsure.entry(page).or_default();
        sums.push(before);
        // What is forgotten is lost, if it should be the one: an error, never other bytes.
        if sums.len() > UNSURE_MAX {
            sums.remove(0);
        }
        self.pages_of(extent).written(at, sum);
        self.is_placement_new = true;
    }
}
