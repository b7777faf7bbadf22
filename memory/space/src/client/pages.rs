//! Page table of a client: checksum and generation (number of writes) of every page. It takes 12 bytes per page of 4
//! KiB, or 3 MiB per GiB.

use std::collections::BTreeSet;

use farcall_link::SplitMix64;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::PAGE_BYTES;

/// Computes checksums. A secret of the client keys them: a node cannot construct bytes that match.
pub(super) struct PageChecksums {
    secrets: RapidSecrets,
    zeros: u64,
}

impl PageChecksums {
    pub fn new(seed: u64) -> Self {
        let secrets = RapidSecrets::seed(seed);
        Self { zeros: rapidhash_v3_seeded(&[0; PAGE_BYTES], &secrets), secrets }
    }

    /// Returns the checksum of a page with these bytes. It also depends on the index of the page.
    pub fn of(&self, page: u64, bytes: &[u8]) -> u64 {
        self.of_content(bytes) ^ SplitMix64::mix(page)
    }

    /// Returns the checksum of these bytes that does not depend on a page.
    pub fn of_content(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.secrets)
    }

    /// Returns the checksum by [`Self::of_content`] of the bytes with which a page has the checksum `sum`.
    pub const fn content_of(page: u64, sum: u64) -> u64 {
        sum ^ SplitMix64::mix(page)
    }

    /// Returns the checksum of a page that was never written.
    pub fn zeros_checksum(&self, page: u64) -> u64 {
        self.zeros ^ SplitMix64::mix(page)
    }
}

/// The page table of an extent.
#[derive(Default)]
pub(super) struct Pages {
    checksums: Vec<u64>,
    /// Generations of the pages; 0 if the page was never written.
    generations: Vec<u32>,
    /// Checksums of the alternative contents of uncertain pages of a volume; 0 for other pages. Empty if no page was
    /// ever uncertain.
    alternatives: Vec<u64>,
    /// Pages of a volume whose entry of their generation is not in the metadata. The next write removes a page from
    /// the set.
    without_entry: BTreeSet<usize>,
}

impl Pages {
    /// Creates the table of `count` pages, none of them written.
    pub fn new(count: usize) -> Self {
        Self { checksums: vec![0; count], generations: vec![0; count], ..Self::default() }
    }

    /// Returns the checksum of a page; `None` if it was never written.
    pub fn checksum(&self, at: usize) -> Option<u64> {
        (*self.generations.get(at)? > 0).then(|| self.checksums[at])
    }

    /// Records that a page has new bytes.
    pub fn written(&mut self, at: usize, sum: u64) {
        self.checksums[at] = sum;
        self.generations[at] = self.next_generation(at);
        self.without_entry.remove(&at);
        self.resolve(at);
    }

    /// Returns the generation of the next write. Of two consecutive generations one is even.
    pub fn next_generation(&self, at: usize) -> u32 {
        self.generations[at].checked_add(1).unwrap_or(2)
    }

    /// Records that a page is uncertain: it matches its checksum or `alternative`.
    pub fn mark_uncertain(&mut self, at: usize, alternative: u64) {
        if self.alternatives.is_empty() {
            self.alternatives = vec![0; self.checksums.len()];
        }
        self.alternatives[at] = alternative;
    }

    /// Returns the checksum of the alternative content of an uncertain page.
    pub fn alternative(&self, at: usize) -> Option<u64> {
        self.alternatives.get(at).copied().filter(|alternative| *alternative != 0)
    }

    /// Records that an uncertain page holds the alternative content. The next write then replaces the metadata entry
    /// of the content that the page does not hold.
    pub fn adopt_alternative(&mut self, at: usize) {
        if let Some(alternative) = self.alternative(at)
            && self.checksums[at] != alternative
        {
            self.checksums[at] = alternative;
            self.generations[at] = self.next_generation(at);
            self.without_entry.insert(at);
        }
    }

    /// Records that a page matches its checksum.
    pub fn resolve(&mut self, at: usize) {
        if let Some(alternative) = self.alternatives.get_mut(at) {
            *alternative = 0;
        }
    }

    /// Restores a page of an earlier client.
    pub fn restore_entry(&mut self, at: usize, sum: u64, generation: u32) {
        (self.checksums[at], self.generations[at]) = (sum, generation);
    }

    /// Creates the table of another process from its checksums and generations.
    pub fn from_entries(entries: &[(u64, u32)]) -> Self {
        Self {
            checksums: entries.iter().map(|(sum, _)| *sum).collect(),
            generations: entries.iter().map(|(_, generation)| *generation).collect(),
            ..Self::default()
        }
    }

    /// Returns whether a page of a volume holds the content described by the metadata entry of its generation. Also
    /// returns `true` for a page that was never written, which has no entry.
    pub fn matches_entry(&self, at: usize) -> bool {
        self.alternative(at).is_none() && !self.without_entry.contains(&at)
    }

    /// Returns the checksum and the generation of a page.
    pub fn entry(&self, at: usize) -> (u64, u32) {
        let generation = self.generations.get(at).copied().unwrap_or(0);
        (self.checksums.get(at).copied().unwrap_or(0), generation)
    }

    /// Records which of several possible contents an uncertain page holds.
    pub fn set_checksum(&mut self, at: usize, sum: u64) {
        self.checksums[at] = sum;
    }

    /// Returns the first page at or after `from` that was written.
    pub fn next_written(&self, from: usize) -> Option<usize> {
        let rest = self.generations.get(from..)?;
        rest.iter().position(|generation| *generation > 0).map(|at| from + at)
    }

    /// Returns the length of the table in bytes.
    pub fn table_bytes(&self) -> usize {
        (self.checksums.capacity() + self.alternatives.capacity()) * size_of::<u64>()
            + self.generations.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_flipped_bits_and_pages_by_checksum() {
        let checksums = PageChecksums::new(7);
        let mut bytes = [0; PAGE_BYTES];
        assert_eq!(checksums.of(3, &bytes), checksums.zeros_checksum(3));
        let right = checksums.of(3, &bytes);
        assert_ne!(right, checksums.of(4, &bytes));
        for bit in 0..PAGE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksums.of(3, &bytes), right, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_ne!(PageChecksums::new(8).of(3, &bytes), right, "another client has another secret");
    }

    #[test]
    fn detects_pages_that_differ_from_their_entry() {
        let mut pages = Pages::new(3);
        pages.written(1, 7);
        assert!((0..3).all(|at| pages.matches_entry(at)));
        pages.mark_uncertain(1, 5);
        assert!(!pages.matches_entry(1));
        // The page holds the content of the older entry. The newer generation counts, and has no entry.
        pages.adopt_alternative(1);
        pages.resolve(1);
        assert!(!pages.matches_entry(1) && pages.matches_entry(2));
        pages.written(1, 9);
        assert!(pages.matches_entry(1));
    }

    #[test]
    fn uses_twelve_bytes_per_page() {
        let mut pages = Pages::new(1_000);
        assert_eq!(pages.table_bytes(), 12_000);
        assert_eq!((pages.checksum(5), pages.next_written(0), pages.next_written(2_000)), (None, None, None));
        pages.written(5, 9);
        assert_eq!(
            (pages.checksum(5), pages.next_written(0), pages.next_written(6)),
            (Some(9), Some(5), None)
        );
    }
}
