//! What the program says of pages in advance.

use super::{ABSENT, POISONED, Pager, RESIDENT, STAGED};

/// Pages that are asked for at once.
const RUN_PAGES: u32 = 32;
/// Pages that are looked at in one turn.
const LOOKED_AT: u32 = 1_024;
/// Pages that are taken out in one turn.
const TAKEN_OUT: u32 = 16;

impl Pager {
    pub(super) fn step_hints(&mut self) -> bool {
        self.bring_wanted() | self.take_unwanted_out()
    }

    /// Brings pages that will be needed, as long as there is room for what is on the way.
    fn bring_wanted(&mut self) -> bool {
        let Some(range) = self.wanted.front().cloned() else { return false };
        if self.saving.is_some() {
            return false;
        }
        let looked_at = range.start..range.end.min(range.start.saturating_add(LOOKED_AT));
        let is_wanted = |page: &u32| self.state(*page) == ABSENT && self.memory.is_written(u64::from(*page));
        let first = looked_at.clone().find(is_wanted);
        let next = match first {
            None => looked_at.end,
            Some(first) => {
                let fetched = self.fetch_ahead(first, RUN_PAGES.min(range.end - first));
                if fetched == 0 && self.fetching > 0 {
                    // Something is on its way, and makes room when it has come.
                    return false;
                }
                // Without room the hint is of no use.
                if fetched == 0 { range.end } else { first + fetched }
            }
        };
        self.wanted.pop_front();
        if next < range.end {
            self.wanted.push_front(next..range.end);
        }
        true
    }

    /// Takes pages out that are not needed. Those that cannot be read are asked for anew when they are touched.
    fn take_unwanted_out(&mut self) -> bool {
        let Some(range) = self.unwanted.pop_front() else { return false };
        let (mut page, mut taken, mut looked_at) = (range.start, 0, 0);
        while page < range.end && taken < TAKEN_OUT && looked_at < LOOKED_AT {
            match self.state(page) {
                RESIDENT => {
                    if !self.staging.has_free() && !self.free_clean() {
                        break;
                    }
                    taken += 1;
                    if self.take_out(page) || self.state(page) == POISONED {
                        self.order.forget(page);
                    }
                }
                POISONED if self.paged.lift_poison(page as usize).is_ok() => self.set(page, ABSENT),
                _ => {}
            }
            self.let_leave(page);
            (page, looked_at) = (page + 1, looked_at + 1);
        }
        let any = page > range.start;
        if page < range.end {
            self.unwanted.push_front(page..range.end);
        }
        any
    }

    /// Gives the memory of a page that was taken out back to the system: now, or when its bytes are stored.
    pub(super) fn let_leave(&mut self, page: u32) {
        if self.state(page) != STAGED {
            return;
        }
        if !self.staging.is_clean(page) {
            self.leaving.insert(page);
            return;
        }
        if let Some(place) = self.staging.place_of(page)
            && self.paged.free_places(place as usize, 1).is_ok()
        {
            self.staging.forget(page);
            self.set(page, ABSENT);
        }
    }
}
