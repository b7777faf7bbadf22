//! Use of the redo log (`redo.rs`) by the engine: slots of operations, and replays of pending pages.

use bytes::Bytes;
use farcall_verbs::Nanos;

use super::Engine;
use super::operation::{Operation, OperationKind};
use super::redo::ZEROS;

/// Maximum number of concurrent operations that replay pages.
pub(super) const REPLAYS_MAX: usize = 64;

impl Engine {
    /// Returns whether writes of the address space are logged.
    pub(super) fn is_logged(&self) -> bool {
        self.redo.has_slots() && !self.is_placement_fixed()
    }

    /// Records that the content of an uncertain page is known without a slot if its newest entry is that of zeros.
    pub(super) fn find_zeros(&mut self, page: u64) {
        let (extent, at) = self.locate(page);
        let is_zero = self.extents[extent].pages.checksum(at) == Some(self.checksums.zeros_checksum(page));
        if is_zero && self.is_logged() && self.is_uncertain(page) && !self.redo.is_pending(page) {
            self.redo.add_pending(page, Bytes::from_static(&ZEROS), Vec::new());
        }
    }

    /// Records that a write of a page failed: the page has the written bytes, which some nodes have in a slot.
    pub(super) fn keep_failed_write(&mut self, page: u64, bytes: Bytes, slot: u32) {
        self.finish_pending(page);
        self.redo.add_pending(page, bytes, vec![slot]);
    }

    /// Records that all in-sync replicas of a page have its content.
    pub(super) fn finish_pending(&mut self, page: u64) {
        let slots = self.redo.finish_pending(page);
        self.release_slots(slots);
    }

    /// Releases slots, and continues the operations that wait for one.
    pub(super) fn release_slots(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.ready.extend(self.redo.release(slots));
    }

    /// Returns the slot for the content that an operation stores; `None` if the operation must wait for one.
    pub(super) fn slot_of(&mut self, id: u32, operation: &mut Operation) -> Option<u32> {
        let slot = match operation.stores_pending(&self.redo) {
            true => self.redo.slot_of_pending(Self::page_of(operation)),
            false => operation
                .slot()
                .or_else(|| Some(self.redo.allocate(1)?.start))
                .inspect(|slot| operation.set_slot(*slot)),
        };
        if slot.is_none() {
            self.redo.wait(id);
        }
        slot
    }

    /// Starts to write pending pages to the replicas that lack them.
    pub(super) fn replay_pending(&mut self, now: Nanos) {
        if !self.must_replay() {
            return;
        }
        while self.replaying < REPLAYS_MAX {
            let mut pages = self.redo.pending_pages();
            let Some(page) = pages.find(|page| !self.locks.contains_key(page)) else { return };
            drop(pages);
            self.replaying += 1;
            self.begin(Operation::new(page, OperationKind::Replay, now + self.config.patience));
        }
    }

    /// Handles the end of an operation that replayed a page. A page that is still pending is replayed again.
    pub(super) const fn page_replayed(&mut self) {
        self.replaying -= 1;
        self.next_maintenance_at = Nanos(0);
    }

    /// Returns whether pages are to be replayed, or operations wait for slots.
    pub(super) fn must_replay(&self) -> bool {
        self.is_logged() && !self.is_fenced() && self.redo.is_busy()
    }
}
