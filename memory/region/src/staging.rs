//! Staging slots for evicted pages. A page stays in its slot until it is stored, and then until the slot is needed,
//! because the program may access the page again. An evicted page that is still staged returns without I/O.

use std::collections::HashMap;
use std::ops::Range;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// Holds a page whose bytes are stored on memory nodes.
    Clean(u32),
    /// Holds a page whose bytes are neither stored nor being stored.
    Dirty(u32),
    /// Holds a page whose store is in flight.
    Storing(u32),
}

pub(crate) struct Staging {
    places: Vec<Place>,
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
            places: vec![Place::Free; (first + count) as usize],
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

    pub fn take_free(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub fn give_free(&mut self, place: u32) {
        self.free.push(place);
    }

    /// Records that a page is in a slot returned by [`Staging::take_free`].
    pub fn put(&mut self, page: u32, place: u32, is_clean: bool) {
        self.places[place as usize] = if is_clean { Place::Clean(page) } else { Place::Dirty(page) };
        self.clean += usize::from(is_clean);
        self.of_page.insert(page, place);
    }

    pub fn place_of(&self, page: u32) -> Option<u32> {
        self.of_page.get(&page).copied()
    }

    /// Returns whether the page is staged and its bytes are neither stored nor being stored.
    pub fn is_dirty(&self, page: u32) -> bool {
        self.is_at(page, Place::Dirty(page))
    }

    /// Returns whether the page is staged and its bytes are stored.
    pub fn is_clean(&self, page: u32) -> bool {
        self.is_at(page, Place::Clean(page))
    }

    fn is_at(&self, page: u32, place: Place) -> bool {
        self.place_of(page).is_some_and(|at| self.places[at as usize] == place)
    }

    /// Records that the store of the page was sent.
    pub fn sent(&mut self, page: u32) {
        self.change(page, Place::Dirty(page), Place::Storing(page));
    }

    /// Records that the store succeeded. If the page returned to the region and was evicted again in the meantime, its
    /// bytes may differ from those that were sent: it stays dirty.
    pub fn stored(&mut self, page: u32) {
        let is_stored = self.change(page, Place::Storing(page), Place::Clean(page));
        self.clean += usize::from(is_stored);
    }

    /// Records that the store failed. Returns whether it must be sent again.
    pub fn not_stored(&mut self, page: u32) -> bool {
        self.change(page, Place::Storing(page), Place::Dirty(page))
    }

    fn change(&mut self, page: u32, from: Place, to: Place) -> bool {
        let Some(place) = self.of_page.get(&page) else { return false };
        let place = &mut self.places[*place as usize];
        let is_so = *place == from;
        if is_so {
            *place = to;
        }
        is_so
    }

    /// Removes a page and frees its slot.
    pub fn forget(&mut self, page: u32) {
        let Some(place) = self.of_page.remove(&page) else { return };
        self.clean -= usize::from(self.places[place as usize] == Place::Clean(page));
        self.places[place as usize] = Place::Free;
        self.free.push(place);
    }

    /// Returns up to `most` adjacent slots with stored pages, in round-robin order.
    pub fn next_clean(&mut self, most: usize) -> Option<Range<usize>> {
        if self.clean == 0 {
            return None;
        }
        let is_clean = |at: &usize| matches!(self.places[*at], Place::Clean(_));
        let count = self.places.len();
        let first = (self.hand..count).chain(0..self.hand).find(is_clean)?;
        let len = (first..count).take(most).take_while(is_clean).count();
        self.hand = (first + len) % count;
        Some(first..first + len)
    }

    /// Returns the page in a slot, if it is stored.
    pub fn clean_page(&self, place: usize) -> Option<u32> {
        match self.places[place] {
            Place::Clean(page) => Some(page),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stored_pages_leave_and_in_turn() {
        let mut staging = Staging::new(1, 4);
        for page in 10..14 {
            let place = staging.take_free().unwrap();
            staging.put(page, place, page != 11);
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
        staging.forget(11);
        assert_eq!((staging.take_free(), staging.place_of(11), staging.clean), (Some(2), None, 3));
    }
}
