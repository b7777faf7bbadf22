//! Eviction of pages, and storing them.

use farcall_memory::{IoError, PAGE_BYTES, Work};
use farcall_verbs::{Clock, Nanos};

use super::{ABSENT, POISONED, Pager, Purpose, STAGED, STORE_RETRY_DELAY};
use crate::paged_memory::Moved;

/// Maximum number of staging slots freed by one system call.
const FREE_BATCH: usize = 8;
/// Maximum number of immovable pages that are skipped in one attempt.
const BUSY_MAX: usize = 16;
/// Maximum number of pages evicted in one driver iteration while no thread waits.
const EVICTIONS_PER_ITERATION: usize = 4;

impl Pager {
    /// Makes space for `count` pages. Returns `false` if a store must complete first.
    pub(super) fn free_space(&mut self, count: usize) -> bool {
        let mut busy = 0;
        while self.used() + count > self.limits.resident {
            if self.free_clean() {
                continue;
            }
            if !self.staging.has_free() || busy == BUSY_MAX || self.fifo.len() == 0 {
                return false;
            }
            busy += usize::from(!self.evict_oldest());
        }
        true
    }

    /// Maintains free space for future faults, and keeps evicted pages in staging slots for as long as possible.
    /// Returns whether it changed anything.
    pub(super) fn maintain_headroom(&mut self) -> bool {
        let is_short = self.used() + self.limits.headroom() > self.limits.resident;
        let is_half_full = self.staging.len() * 2 > self.limits.staging() as usize;
        if is_short && is_half_full && self.free_clean() {
            return true;
        }
        let is_wanted = is_short || self.used() > self.limits.resident / 8 * 7;
        if !is_wanted || !self.staging.has_free() {
            return is_short && self.free_clean();
        }
        let mut any = false;
        for _ in 0..EVICTIONS_PER_ITERATION {
            any |= self.evict_oldest();
        }
        any
    }

    /// Returns memory of stored pages in staging slots to the kernel.
    pub(super) fn free_clean(&mut self) -> bool {
        let Some(slots) = self.staging.next_clean(FREE_BATCH) else { return false };
        if self.paged.free_slots(slots.start, slots.len()).is_err() {
            self.is_broken = true;
            return false;
        }
        for slot in slots {
            if let Some(page) = self.staging.clean_page(slot) {
                self.staging.remove(page);
                self.set(page, ABSENT);
            }
        }
        true
    }

    /// Evicts the page that has been resident for the longest time.
    fn evict_oldest(&mut self) -> bool {
        let Some(page) = self.fifo.pop() else { return false };
        let is_out = self.evict(page);
        if !is_out && self.state(page) != POISONED {
            self.fifo.push(page);
        }
        is_out
    }

    /// Evicts a resident page that is no longer in the FIFO. Returns `false` if it is still resident, was poisoned, or
    /// there is no free slot.
    pub(super) fn evict(&mut self, page: u32) -> bool {
        let Some(slot) = self.staging.allocate_slot() else { return false };
        match self.paged.move_out(page as usize, slot as usize) {
            Moved::Yes => {}
            Moved::Busy => {
                self.staging.release_slot(slot);
                return false;
            }
            Moved::Missing => {
                self.staging.release_slot(slot);
                self.poison(page);
                return false;
            }
        }
        self.set(page, STAGED);
        self.counts.evicted += 1;
        // While an older version is being written, the checksum of the stored page is about to change, so it must not
        // be compared.
        let is_stored = !self.stores.contains_key(&page)
            && self.memory.holds(page.into(), self.paged.staged_bytes(slot as usize));
        self.counts.evicted_clean += u64::from(is_stored);
        self.staging.put(page, slot, is_stored);
        if !is_stored {
            self.unsent.push_back(page);
            let now = self.clock.now();
            self.send_stores(now);
        }
        true
    }

    /// Sends the stores of evicted pages whose bytes differ from those on memory nodes.
    pub(super) fn send_stores(&mut self, now: Nanos) -> bool {
        if now < self.retry_stores_at {
            return false;
        }
        let mut any = false;
        while self.memory.has_room(1)
            && let Some(page) = self.unsent.pop_front()
        {
            let slot = self.staging.slot_of(page);
            if let Some(slot) = slot
                && self.staging.is_dirty(page)
            {
                any = true;
                let bytes = self.paged.staged_bytes(slot as usize).to_vec();
                debug_assert_eq!(bytes.len(), PAGE_BYTES);
                *self.stores.entry(page).or_default() += 1;
                self.staging.sent(page);
                self.submit(Purpose::Store, page, Work::Write(bytes.into()));
            }
        }
        any
    }

    /// Handles the completion of a store.
    pub(super) fn stored(&mut self, page: u32, error: Option<IoError>, now: Nanos) {
        if let Some(count) = self.stores.get_mut(&page) {
            *count -= 1;
            // A store of a later version is in flight.
            if *count > 0 {
                return;
            }
            self.stores.remove(&page);
        }
        if error.is_none() {
            self.counts.stored += 1;
            self.failing_since = None;
            self.staging.stored(page);
            if self.staging.is_clean(page) && self.releasing.remove(&page) {
                self.release_staged(page);
            }
            return;
        }
        self.counts.not_stored += 1;
        self.failing_since = self.failing_since.or(Some(now));
        self.retry_stores_at = now + STORE_RETRY_DELAY;
        // If the page is resident again, its next eviction compares the checksums and stores it.
        if self.staging.not_stored(page) {
            self.unsent.push_back(page);
        }
    }
}
