//! Staging slots for evicted pages. A page stays in its slot until it is stored, and then until the slot is needed,
//! because the program may access the page again. An evicted page that is still staged returns without I/O.

use std::collections::HashMap;
use std::ops::Range;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagingSlot {
    Free,
    /// Holds a page whose bytes are stored on memory nodes.
    Clean(u32),
    /// Holds a page whose bytes are neither stored nor being stored.
    Dirty(u32),
    /// Holds a page whose store is in flight.
    Storing(u32),
}

pub(crate) struct Staging {
    slots: Vec<StagingSlot>,
    free: Vec<u32>,
    of_page: HashMap<u32, u32>,
    clean: usize,
    /// Slot from which the search for the next clean page begins.
    hand: usize,
}

impl Staging {
    /// Creates `count` slots, numbered from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self {
            slots: vec![StagingSlot::Free; (first + count) as usize],
            free: (first..first + count).rev().collect(),
            of_page: HashMap::new(),
            clean: 0,
            hand: 0,
        }
    }

    /// Returns the number of staged pages.
    pub fn len(&self) -> usize {
        self.of_page.len()
    }

    pub const fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn allocate_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn release_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Records that a page is in a slot returned by [`Staging::allocate_slot`].
    pub fn put(&mut self, page: u32, slot: u32, is_clean: bool) {
        self.slots[slot as usize] =
            if is_clean { StagingSlot::Clean(page) } else { StagingSlot::Dirty(page) };
        self.clean += usize::from(is_clean);
        self.of_page.insert(page, slot);
    }

    pub fn slot_of(&self, page: u32) -> Option<u32> {
        self.of_page.get(&page).copied()
    }

    /// Returns whether the page is staged and its bytes are neither stored nor being stored.
    pub fn is_dirty(&self, page: u32) -> bool {
        self.is_at(page, StagingSlot::Dirty(page))
    }

    /// Returns whether the page is staged and its bytes are stored.
    pub fn is_clean(&self, page: u32) -> bool {
        self.is_at(page, StagingSlot::Clean(page))
    }

    fn is_at(&self, page: u32, slot: StagingSlot) -> bool {
        self.slot_of(page).is_some_and(|at| self.slots[at as usize] == slot)
    }

    /// Records that the store of the page was sent.
    pub fn sent(&mut self, page: u32) {
        self.change(page, StagingSlot::Dirty(page), StagingSlot::Storing(page));
    }

    /// Records that the store succeeded. If the page returned to the region and was evicted again in the meantime, its
    /// bytes may differ from those that were sent: it stays dirty.
    pub fn stored(&mut self, page: u32) {
        let is_stored = self.change(page, StagingSlot::Storing(page), StagingSlot::Clean(page));
        self.clean += usize::from(is_stored);
    }

    /// Records that the store failed. Returns whether it must be sent again.
    pub fn not_stored(&mut self, page: u32) -> bool {
        self.change(page, StagingSlot::Storing(page), StagingSlot::Dirty(page))
    }

    fn change(&mut self, page: u32, from: StagingSlot, to: StagingSlot) -> bool {
        let Some(slot) = self.of_page.get(&page) else { return false };
        let slot = &mut self.slots[*slot as usize];
        let is_so = *slot == from;
        if is_so {
            *slot = to;
        }
        is_so
    }

    /// Removes a page and frees its slot.
    pub fn remove(&mut self, page: u32) {
        let Some(slot) = self.of_page.remove(&page) else { return };
        self.clean -= usize::from(self.slots[slot as usize] == StagingSlot::Clean(page));
        self.slots[slot as usize] = StagingSlot::Free;
        self.free.push(slot);
    }

    /// Returns up to `most` adjacent slots with stored pages, in round-robin order.
    pub fn next_clean(&mut self, most: usize) -> Option<Range<usize>> {
        if self.clean == 0 {
            return None;
        }
        let is_clean = |at: &usize| matches!(self.slots[*at], StagingSlot::Clean(_));
        let count = self.slots.len();
        let first = (self.hand..count).chain(0..self.hand).find(is_clean)?;
        let len = (first..count).take(most).take_while(is_clean).count();
        self.hand = (first + len) % count;
        Some(first..first + len)
    }

    /// Returns the page in a slot, if it is stored.
    pub fn clean_page(&self, slot: usize) -> Option<u32> {
        match self.slots[slot] {
            StagingSlot::Clean(page) => Some(page),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_only_stored_pages_in_turn() {
        let mut staging = Staging::new(1, 4);
        for page in 10..14 {
            let slot = staging.allocate_slot().unwrap();
            staging.put(page, slot, page != 11);
        }
        assert!(!staging.has_free() && (staging.len(), staging.clean) == (4, 3));
        assert!(staging.is_dirty(11) && !staging.is_dirty(10));
        assert_eq!(staging.next_clean(8), Some(1..2), "11 is not stored");
        assert_eq!(staging.next_clean(8), Some(3..5));
        staging.stored(11);
        assert!(staging.is_dirty(11), "what was stored was sent before it came here");
        staging.sent(11);
        staging.stored(11);
        assert_eq!(staging.next_clean(2), Some(1..3));
        assert_eq!(staging.clean_page(2), Some(11));
        staging.remove(11);
        assert_eq!((staging.allocate_slot(), staging.slot_of(11), staging.clean), (Some(2), None, 3));
    }
}
