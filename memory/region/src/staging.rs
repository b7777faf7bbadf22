//! Places beside the region, where pages are that were taken out: until they are stored, and then for as long as there is
//! room, since they may be wanted back. So a page leaves in two steps, and comes back from the first without any I/O.

use std::collections::HashMap;
use std::ops::Range;

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    /// A page whose bytes are stored.
    Clean(u32),
    /// A page whose bytes are not stored, nor on their way.
    Dirty(u32),
    /// A page whose bytes are on their way.
    Storing(u32),
}

pub(crate) struct Staging {
    places: Vec<Place>,
    free: Vec<u32>,
    of_page: HashMap<u32, u32>,
    clean: usize,
    /// Where the next page is sought that leaves.
    hand: usize,
}

impl Staging {
    /// Places from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self {
            places: vec![Place::Free; (first + count) as usize],
            free: (first..first + count).rev().collect(),
            of_page: HashMap::new(),
            clean: 0,
            hand: 0,
        }
    }

    /// Pages that are here.
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

    /// A page is at a place that was taken.
    pub fn put(&mut self, page: u32, place: u32, is_clean: bool) {
        self.places[place as usize] = if is_clean { Place::Clean(page) } else { Place::Dirty(page) };
        self.clean += usize::from(is_clean);
        self.of_page.insert(page, place);
    }

    pub fn place_of(&self, page: u32) -> Option<u32> {
        self.of_page.get(&page).copied()
    }

    /// Whether a page is here whose bytes are not stored, nor on their way.
    pub fn is_dirty(&self, page: u32) -> bool {
        self.is_at(page, Place::Dirty(page))
    }

    /// Whether a page is here whose bytes are stored.
    pub fn is_clean(&self, page: u32) -> bool {
        self.is_at(page, Place::Clean(page))
    }

    fn is_at(&self, page: u32, place: Place) -> bool {
        self.place_of(page).is_some_and(|at| self.places[at as usize] == place)
    }

    /// Its bytes are on their way.
    pub fn sent(&mut self, page: u32) {
        self.change(page, Place::Dirty(page), Place::Storing(page));
    }

    /// The bytes that were on their way are stored. A page that was here when they were sent, back in the region and is
    /// here again has others: it stays dirty.
    pub fn stored(&mut self, page: u32) {
        let is_stored = self.change(page, Place::Storing(page), Place::Clean(page));
        self.clean += usize::from(is_stored);
    }

    /// The bytes that were on their way are not stored. Returns whether they are to be sent again.
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

    /// A page is not here any more; its place is free.
    pub fn forget(&mut self, page: u32) {
        let Some(place) = self.of_page.remove(&page) else { return };
        self.clean -= usize::from(self.places[place as usize] == Place::Clean(page));
        self.places[place as usize] = Place::Free;
        self.free.push(place);
    }

    /// Places side by side with stored pages, those that were filled first: at most so many.
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

    /// The page at a place, if it is stored.
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
