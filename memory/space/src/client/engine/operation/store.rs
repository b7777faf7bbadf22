//! Writing the bytes of an operation's page to replicas.

use farcall_verbs::Nanos;

use super::{Aim, Operation, Stage};
use crate::client::config::IoError;
use crate::client::engine::Engine;
use crate::client::extent::Replica;

/// Maximum number of alternative contents recorded for an uncertain page.
const UNSURE_MAX: usize = 8;

impl Engine {
    /// Writes the content of a volume's page to the replicas that differ from it. Such a replica may hold the content
    /// of the older entry, which the entry of the write replaces. If this client and the node of the other replica
    /// exited after that, no replica would match an entry.
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
            // The other pages of a new slab would be taken for zeros.
            if self.noting.is_some() && self.extents[extent].is_lost() {
                return Some(Err(IoError::Lost { page: operation.page }));
            }
            // The first write waits for all requested slabs; a write to an extent without replicas waits for one.
            let Some(targets) = self.write_targets(extent, now) else {
                return self.wait_for_place(id, operation, now);
            };
            operation.left = targets;
            // Overwrite the last replica that has the present content last.
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
        // The request has its result. The next read tries a failed repair again.
        if operation.is_late
            && matches!(operation.aim, Aim::Read(_) | Aim::Scrub { .. })
            && !self.is_unsettled(operation.page)
        {
            return Some(Ok(()));
        }
        self.wait(id, operation)
    }

    /// Starts to write the remaining replicas. Returns whether none is left.
    fn store_left(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> bool {
        // In a volume one replica at a time: if the client exits in between, the others are consistent. That holds for
        // repairs by reads, copies and scrubs as well: one of the others may be left without the node of the content.
        let at_once = if self.noting.is_some() { 1 } else { usize::MAX };
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

    /// Handles the state in which no replica is left to be written.
    fn stored(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> Option<Result<(), IoError>> {
        let (extent, at) = self.place(operation.page);
        if !operation.is_write() {
            self.extents[extent].pages.settle(at);
            return Some(Ok(()));
        }
        let extent = &self.extents[extent];
        if !operation.stored.iter().any(|serial| extent.replica(*serial).is_some()) {
            // All replicas that had it were dropped. Others may exist, or may be created.
            operation.was_posted = false;
            return if operation.is_late { self.wait(id, operation) } else { self.store(id, operation, now) };
        }
        // A replica created in the meantime must have it as well: a page is not copied to a new replica if it had not
        // been written when the replica was created.
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

    /// Marks the page of a failed write as uncertain. Each replica holds the earlier content, the written bytes, or
    /// neither.
    pub(super) fn leave_unsure(&mut self, operation: &Operation) {
        self.may_hold(operation.page, self.sum_of(operation));
    }

    /// Marks a page as uncertain: it holds its earlier content or the one with the checksum `sum`.
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
        // If the page holds a content that was discarded here, it is lost: an error, never other bytes.
        if sums.len() > UNSURE_MAX {
            sums.remove(0);
        }
        self.pages_of(extent).written(at, sum);
        self.is_placement_new = true;
    }
}
