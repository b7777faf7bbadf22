//! Hints of the program about future accesses.

use super::{ABSENT, POISONED, Pager, RESIDENT, STAGED};

/// Maximum number of pages per request.
const RUN_PAGES: u32 = 32;
/// Maximum number of pages inspected in one driver iteration.
const HINTED_PAGES_MAX: u32 = 1_024;
/// Maximum number of pages evicted in one driver iteration.
const HINTED_EVICTIONS_MAX: u32 = 16;

impl Pager {
    pub(super) fn step_hints(&mut self) -> bool {
        self.fetch_wanted() | self.evict_unwanted()
    }

    /// Fetches pages that will be needed, as long as there is space for them.
    fn fetch_wanted(&mut self) -> bool {
        let Some(range) = self.wanted.front().cloned() else { return false };
        if self.snapshot.is_some() {
            return false;
        }
        let inspected = range.start..range.end.min(range.start.saturating_add(HINTED_PAGES_MAX));
        let is_wanted = |page: &u32| self.state(*page) == ABSENT && self.memory.is_written(u64::from(*page));
        let first = inspected.clone().find(is_wanted);
        let next = match first {
            None => inspected.end,
            Some(first) => {
                let fetched = self.fetch_ahead(first, RUN_PAGES.min(range.end - first));
                if fetched == 0 && self.fetching > 0 {
                    // Retry after the fetches in flight have completed.
                    return false;
                }
                // Without space the rest of the hint is dropped.
                if fetched == 0 { range.end } else { first + fetched }
            }
        };
        self.wanted.pop_front();
        if next < range.end {
            self.wanted.push_front(next..range.end);
        }
        true
    }

    /// Evicts pages that are not needed. Poisoned ones become absent, so that their next access reads them again.
    fn evict_unwanted(&mut self) -> bool {
        let Some(range) = self.unwanted.pop_front() else { return false };
        let (mut page, mut taken, mut inspected) = (range.start, 0, 0);
        while page < range.end && taken < HINTED_EVICTIONS_MAX && inspected < HINTED_PAGES_MAX {
            match self.state(page) {
                RESIDENT => {
                    if !self.staging.has_free() && !self.free_clean() {
                        break;
                    }
                    taken += 1;
                    if self.evict(page) || self.state(page) == POISONED {
                        self.fifo.remove(page);
                    }
                }
                POISONED if self.paged.unpoison(page as usize).is_ok() => self.set(page, ABSENT),
                _ => {}
            }
            self.release_staged(page);
            (page, inspected) = (page + 1, inspected + 1);
        }
        let any = page > range.start;
        if page < range.end {
            self.unwanted.push_front(page..range.end);
        }
        any
    }

    /// Returns the memory of an evicted page to the kernel: immediately if its bytes are stored, otherwise after the
    /// store.
    pub(super) fn release_staged(&mut self, page: u32) {
        if self.state(page) != STAGED {
            return;
        }
        if !self.staging.is_clean(page) {
            self.releasing.insert(page);
            return;
        }
        if let Some(slot) = self.staging.slot_of(page)
            && self.paged.free_slots(slot as usize, 1).is_ok()
        {
            self.staging.remove(page);
            self.set(page, ABSENT);
        }
    }
}
