//! What a client keeps of every page: the checksum of what was written last, and how often it was written. Twelve bytes
//! a page of 4 KiB: 3 MiB for each GiB.

use std::collections::BTreeSet;

use farcall_link::SplitMix64;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::PAGE_BYTES;

/// Makes checksums. They are keyed by a secret of the client's: a node cannot know which bytes match.
pub(super) struct Sums {
    secrets: RapidSecrets,
    zeros: u64,
}

impl Sums {
    pub fn new(seed: u64) -> Self {
        let secrets = RapidSecrets::seed(seed);
        Self { zeros: rapidhash_v3_seeded(&[0; PAGE_BYTES], &secrets), secrets }
    }

    /// Of the bytes of a page. The bytes of another page have another one.
    pub fn of(&self, page: u64, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.secrets) ^ SplitMix64::mix(page)
    }

    /// Of a page that was never written.
    pub fn of_zeros(&self, page: u64) -> u64 {
        self.zeros ^ SplitMix64::mix(page)
    }
}

/// The pages of an extent.
#[derive(Default)]
pub(super) struct Pages {
    sums: Vec<u64>,
    /// 0: never written.
    generations: Vec<u32>,
    /// Of pages of a volume that may hold something else instead, what that is. 0, and empty: of none.
    others: Vec<u64>,
    /// Pages of a volume whose entry in the notes is not the one of their generation, until they are written.
    misplaced: BTreeSet<usize>,
}

impl Pages {
    /// Room for so many pages, none of them written.
    pub fn new(count: usize) -> Self {
        Self { sums: vec![0; count], generations: vec![0; count], ..Self::default() }
    }

    /// The checksum of a page; `None` if it was never written.
    pub fn sum(&self, at: usize) -> Option<u64> {
        (*self.generations.get(at)? > 0).then(|| self.sums[at])
    }

    /// The page has other bytes now.
    pub fn written(&mut self, at: usize, sum: u64) {
        self.sums[at] = sum;
        self.generations[at] = self.next_generation(at);
        self.misplaced.remove(&at);
        self.settle(at);
    }

    /// That of the next write. Of two in turn one is even.
    pub fn next_generation(&self, at: usize) -> u32 {
        self.generations[at].checked_add(1).unwrap_or(2)
    }

    /// The page holds what its checksum says, or something else.
    pub fn unsettle(&mut self, at: usize, other: u64) {
        if self.others.is_empty() {
            self.others = vec![0; self.sums.len()];
        }
        self.others[at] = other;
    }

    /// What a page may hold instead.
    pub fn other(&self, at: usize) -> Option<u64> {
        self.others.get(at).copied().filter(|other| *other != 0)
    }

    /// It is the other: the next write takes the place, in notes, of what it is not.
    pub fn is_other(&mut self, at: usize) {
        if let Some(other) = self.other(at)
            && self.sums[at] != other
        {
            self.sums[at] = other;
            self.generations[at] = self.next_generation(at);
            self.misplaced.insert(at);
        }
    }

    /// It holds what its checksum says.
    pub fn settle(&mut self, at: usize) {
        if let Some(other) = self.others.get_mut(at) {
            *other = 0;
        }
    }

    /// A page of an earlier client.
    pub fn found(&mut self, at: usize, sum: u64, generation: u32) {
        (self.sums[at], self.generations[at]) = (sum, generation);
    }

    /// The table of another process: checksums and generations.
    pub fn of(entries: &[(u64, u32)]) -> Self {
        Self {
            sums: entries.iter().map(|(sum, _)| *sum).collect(),
            generations: entries.iter().map(|(_, generation)| *generation).collect(),
            ..Self::default()
        }
    }

    /// Returns whether a page of a volume holds what the entry of its generation in the notes says. A page that was never
    /// written has no entry.
    pub fn is_noted_as_held(&self, at: usize) -> bool {
        self.other(at).is_none() && !self.misplaced.contains(&at)
    }

    /// The checksum and the generation of a page.
    pub fn entry(&self, at: usize) -> (u64, u32) {
        let generation = self.generations.get(at).copied().unwrap_or(0);
        (self.sums.get(at).copied().unwrap_or(0), generation)
    }

    /// Of what was written, this is what the page holds.
    pub fn settled(&mut self, at: usize, sum: u64) {
        self.sums[at] = sum;
    }

    /// The next page at `from` or after it that was written.
    pub fn next_written(&self, from: usize) -> Option<usize> {
        let rest = self.generations.get(from..)?;
        rest.iter().position(|generation| *generation > 0).map(|at| from + at)
    }

    /// Memory of the table.
    pub fn table_bytes(&self) -> usize {
        (self.sums.capacity() + self.others.capacity()) * size_of::<u64>()
            + self.generations.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_and_another_page_have_other_checksums() {
        let sums = Sums::new(7);
        let mut bytes = [0; PAGE_BYTES];
        assert_eq!(sums.of(3, &bytes), sums.of_zeros(3));
        let right = sums.of(3, &bytes);
        assert_ne!(right, sums.of(4, &bytes));
        for bit in 0..PAGE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sums.of(3, &bytes), right, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_ne!(Sums::new(8).of(3, &bytes), right, "another client has another secret");
    }

    #[test]
    fn knows_pages_whose_entry_is_not_noted_as_held() {
        let mut pages = Pages::new(3);
        pages.written(1, 7);
        assert!((0..3).all(|at| pages.is_noted_as_held(at)));
        pages.unsettle(1, 5);
        assert!(!pages.is_noted_as_held(1));
        // It holds the older one of two: the newer generation counts, and has no entry.
        pages.is_other(1);
        pages.settle(1);
        assert!(!pages.is_noted_as_held(1) && pages.is_noted_as_held(2));
        pages.written(1, 9);
        assert!(pages.is_noted_as_held(1));
    }

    #[test]
    fn a_table_takes_twelve_bytes_a_page() {
        let mut pages = Pages::new(1_000);
        assert_eq!(pages.table_bytes(), 12_000);
        assert_eq!((pages.sum(5), pages.next_written(0), pages.next_written(2_000)), (None, None, None));
        pages.written(5, 9);
        assert_eq!((pages.sum(5), pages.next_written(0), pages.next_written(6)), (Some(9), Some(5), None));
    }
}
