//! Page table of a client: checksum and generation (number of writes) of every page. It takes 12 bytes per page of 4
//! KiB, or 3 MiB per GiB.

use std::collections::BTreeSet;

use farcall_link::SplitMix64;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::PAGE_BYTES;

/// Computes checksums. A secret of the client keys them: a node cannot construct bytes that match.
pub(super) struct Sums {
    secrets: RapidSecrets,
    zeros: u64,
}

impl Sums {
    pub fn new(seed: u64) -> Self {
        let secrets = RapidSecrets::seed(seed);
        Self { zeros: rapidhash_v3_seeded(&[0; PAGE_BYTES], &secrets), secrets }
    }

    /// Returns the checksum of a page with these bytes. It also depends on the index of the page.
    pub fn of(&self, page: u64, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.secrets) ^ SplitMix64::mix(page)
    }

    /// Returns the checksum of a page that was never written.
    pub fn of_zeros(&self, page: u64) -> u64 {
        self.zeros ^ SplitMix64::mix(page)
    }
}

/// The page table of an extent.
#[derive(Default)]
pub(super) struct Pages {
    sums: Vec<u64>,
    /// Generations of the pages; 0 if the page was never written.
    generations: Vec<u32>,
    /// Checksums of the alternative contents of uncertain pages of a volume; 0 for other pages. Empty if no page was
    /// ever uncertain.
    others: Vec<u64>,
    /// Pages of a volume whose entry of their generation is not in the metadata. The next write removes a page from
    /// the set.
    misplaced: BTreeSet<usize>,
}

impl Pages {
    /// Creates the table of `count` pages, none of them written.
    pub fn new(count: usize) -> Self {
        Self { sums: vec![0; count], generations: vec![0; count], ..Self::default() }
    }

    /// Returns the checksum of a page; `None` if it was never written.
    pub fn sum(&self, at: usize) -> Option<u64> {
        (*self.generations.get(at)? > 0).then(|| self.sums[at])
    }

    /// Records that a page has new bytes.
    pub fn written(&mut self, at: usize, sum: u64) {
        self.sums[at] = sum;
        self.generations[at] = self.next_generation(at);
        self.misplaced.remove(&at);
        self.settle(at);
    }

    /// Returns the generation of the next write. Of two consecutive generations one is even.
    pub fn next_generation(&self, at: usize) -> u32 {
        self.generations[at].checked_add(1).unwrap_or(2)
    }

    /// Records that a page is uncertain: it matches its checksum or `other`.
    pub fn unsettle(&mut self, at: usize, other: u64) {
        if self.others.is_empty() {
            self.others = vec![0; self.sums.len()];
        }
        self.others[at] = other;
    }

    /// Returns the checksum of the alternative content of an uncertain page.
    pub fn other(&self, at: usize) -> Option<u64> {
        self.others.get(at).copied().filter(|other| *other != 0)
    }

    /// Records that an uncertain page holds the alternative content. The next write then replaces the metadata entry
    /// of the content that the page does not hold.
    pub fn is_other(&mut self, at: usize) {
        if let Some(other) = self.other(at)
            && self.sums[at] != other
        {
            self.sums[at] = other;
            self.generations[at] = self.next_generation(at);
            self.misplaced.insert(at);
        }
    }

    /// Records that a page matches its checksum.
    pub fn settle(&mut self, at: usize) {
        if let Some(other) = self.others.get_mut(at) {
            *other = 0;
        }
    }

    /// Restores a page of an earlier client.
    pub fn found(&mut self, at: usize, sum: u64, generation: u32) {
        (self.sums[at], self.generations[at]) = (sum, generation);
    }

    /// Creates the table of another process from its checksums and generations.
    pub fn of(entries: &[(u64, u32)]) -> Self {
        Self {
            sums: entries.iter().map(|(sum, _)| *sum).collect(),
            generations: entries.iter().map(|(_, generation)| *generation).collect(),
            ..Self::default()
        }
    }

    /// Returns whether a page of a volume holds the content described by the metadata entry of its generation. Also
    /// returns `true` for a page that was never written, which has no entry.
    pub fn is_noted_as_held(&self, at: usize) -> bool {
        self.other(at).is_none() && !self.misplaced.contains(&at)
    }

    /// Returns the checksum and the generation of a page.
    pub fn entry(&self, at: usize) -> (u64, u32) {
        let generation = self.generations.get(at).copied().unwrap_or(0);
        (self.sums.get(at).copied().unwrap_or(0), generation)
    }

    /// Records which of several possible contents an uncertain page holds.
    pub fn settled(&mut self, at: usize, sum: u64) {
        self.sums[at] = sum;
    }

    /// Returns the first page at or after `from` that was written.
    pub fn next_written(&self, from: usize) -> Option<usize> {
        let rest = self.generations.get(from..)?;
        rest.iter().position(|generation| *generation > 0).map(|at| from + at)
    }

    /// Returns the length of the table in bytes.
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
        // The page holds the content of the older entry. The newer generation counts, and has no entry.
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
