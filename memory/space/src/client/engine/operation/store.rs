//! Writing the bytes of an operation's page to replicas.

use farcall_verbs::Nanos;

use super::{Intent, Operation, OperationKind, OperationState};
use crate::client::config::IoError;
use crate::client::engine::Engine;
use crate::client::extent::Replica;

/// Maximum number of alternative contents recorded for an uncertain page.
const ALTERNATIVES_MAX: usize = 8;

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
            return if operation.is_intent_pending() { None } else { self.wait_for_extent(id, operation) };
        }
        let (extent, at) = self.locate(operation.page);
        self.extents[extent].pages.resolve(at);
        self.finish_pending(operation.page);
        (operation.intent, operation.logged) = (Intent::None, Vec::new());
        self.count_repairs(operation);
        operation.wrong.retain(|serial| !operation.stored.contains(serial));
        operation.right.append(&mut operation.stored);
        self.merge_written_part(operation);
        operation.state = OperationState::Storing;
        None
    }

    pub(super) fn store(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        if operation.is_intent_pending() {
            return None;
        }
        let (extent, _) = self.locate(operation.page);
        if operation.is_write() && !operation.was_posted {
            // The other pages of a new slab would be taken for zeros.
            if self.metadata.is_some() && self.extents[extent].is_lost() {
                return Some(Err(IoError::Lost { page: operation.page }));
            }
            // The first write waits for all requested slabs; a write to an extent without replicas waits for one.
            let Some(targets) = self.write_targets(extent, now) else {
                return self.wait_for_replica(id, operation, now);
            };
            operation.left = targets;
            self.save_part(operation);
            if !operation.is_intent_committed() && operation.is_late {
                return Some(Err(IoError::Unreachable { page: operation.page }));
            }
        }
        if self.store_left(id, operation, now) {
            return self.finish_store(id, operation, now);
        }
        if !operation.in_flight.is_empty() || operation.is_intent_pending() {
            return None;
        }
        // The request has its result. The next read tries a failed repair again.
        if operation.is_late
            && matches!(operation.kind, OperationKind::Read(_) | OperationKind::Scrub { .. })
            && !self.is_uncertain(operation.page)
        {
            return Some(Ok(()));
        }
        self.wait_for_extent(id, operation)
    }

    /// Starts to write the remaining replicas. Returns whether none is left.
    fn store_left(&mut self, id: u32, operation: &mut Operation, now: Nanos) -> bool {
        let (extent, _) = self.locate(operation.page);
        let extent = &self.extents[extent];
        operation.left.retain(|serial| extent.replica(*serial).is_some());
        if !operation.left.is_empty() && !self.commit_intent(id, operation, now) {
            return false;
        }
        let extent = &self.extents[self.locate(operation.page).0];
        let is_reachable = |serial: &&u32| extent.replica(**serial).is_some_and(Replica::is_reachable);
        let to: Vec<u32> = operation.left.iter().filter(is_reachable).copied().collect();
        if !operation.is_late {
            for serial in to {
                if !operation.in_flight.contains(&serial) {
                    self.write_page(id, operation, serial, now);
                }
            }
        }
        operation.in_flight.is_empty() && operation.left.is_empty()
    }

    /// Handles the state in which no replica is left to be written.
    fn finish_store(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
    ) -> Option<Result<(), IoError>> {
        let (extent, at) = self.locate(operation.page);
        if !operation.is_write() {
            self.extents[extent].pages.resolve(at);
            self.finish_pending(operation.page);
            return Some(Ok(()));
        }
        let extent = &self.extents[extent];
        if !operation.stored.iter().any(|serial| extent.replica(*serial).is_some()) {
            // All replicas that had it were dropped. Others may exist, or may be created.
            operation.was_posted = false;
            return if operation.is_late {
                self.wait_for_extent(id, operation)
            } else {
                self.store(id, operation, now)
            };
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
        let sum = self.checksum_of(operation);
        let (extent, _) = self.locate(operation.page);
        self.pages_of(extent).written(at, sum);
        self.placement_dirty |= self.uncertain_pages.remove(&operation.page).is_some();
        Some(Ok(()))
    }

    pub(in super::super) fn checksum_of(&self, operation: &Operation) -> u64 {
        operation.bytes.as_ref().map_or(0, |bytes| self.checksums.of(operation.page, bytes))
    }

    /// Marks the page of a failed write as uncertain. Each replica holds the earlier content, the written bytes, or
    /// neither.
    pub(super) fn mark_failed_write(&mut self, operation: &Operation) {
        self.mark_page_uncertain(operation.page, self.checksum_of(operation));
        if let Some(slot) = operation.slot {
            self.keep_failed_write(operation.page, operation.content(), slot);
        }
    }

    /// Marks a page as uncertain: it holds its earlier content or the one with the checksum `sum`.
    pub(in super::super) fn mark_page_uncertain(&mut self, page: u64, sum: u64) {
        let (extent, at) = self.locate(page);
        let before =
            self.extents[extent].pages.checksum(at).unwrap_or_else(|| self.checksums.zeros_checksum(page));
        if self.metadata.is_some() {
            let pages = self.pages_of(extent);
            pages.written(at, sum);
            return pages.mark_uncertain(at, before);
        }
        let sums = self.uncertain_pages.entry(page).or_default();
        sums.push(before);
        // If the page holds a content that was discarded here, it is lost: an error, never other bytes.
        if sums.len() > ALTERNATIVES_MAX {
            sums.remove(0);
        }
        self.pages_of(extent).written(at, sum);
        self.placement_dirty = true;
    }
}
