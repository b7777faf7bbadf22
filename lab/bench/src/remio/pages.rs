//! Content of a memory server's memory: bytes that identify their location and whether they have been written.

use farcall_link::{Region, SplitMix64};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = 8;
/// Maximum length of a memory server's region in bytes.
const REGION_BYTES_MAX: u64 = 1 << 30;
/// Difference of consecutive words of a page; odd, so that all of them differ.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Version of a complete page of a memory server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Initial content.
    Granted,
    /// Content after a WRITE.
    Written,
}

/// Pages of a memory server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Distinguishes the bytes of this run from those of other runs.
    salt: u64,
    pub(super) count: u64,
    /// Length of a page, and of a request, in bytes.
    pub(super) len_bytes: usize,
}

impl Pages {
    /// Returns as many pages, rounded up to whole words, as fit into the region, but at least `count_min`.
    pub(super) fn of(len_bytes: usize, region_bytes: usize, count_min: u64, salt: u64) -> Self {
        let len_bytes = len_bytes.next_multiple_of(WORD).max(WORD);
        Self { salt, count: ((region_bytes / len_bytes) as u64).max(count_min), len_bytes }
    }

    /// Rejects sizes that no measurement requests.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let bytes = self.count.checked_mul(self.len_bytes as u64);
        let is_whole = self.len_bytes > 0 && self.len_bytes.is_multiple_of(WORD);
        match bytes {
            Some(1..=REGION_BYTES_MAX) if is_whole => Ok(()),
            _ => Err("a memory server's pages are of whole words, and of 1 GiB together at most"),
        }
    }

    pub(super) fn offset(&self, page: u64) -> usize {
        page as usize * self.len_bytes
    }

    fn words(&self, page: u64, version: Version) -> impl Iterator<Item = u64> {
        let first = SplitMix64::mix(self.salt ^ (page << 1 | version as u64));
        (0..(self.len_bytes / WORD) as u64).map(move |at| first.wrapping_add(at.wrapping_mul(STEP)))
    }

    /// Fills a buffer with the content of a page.
    pub(super) fn fill(&self, page: u64, version: Version, bytes: &mut [u8]) {
        for (bytes, word) in bytes.chunks_exact_mut(WORD).zip(self.words(page, version)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Fills a location of a region with the content of a page.
    pub(super) fn fill_region(&self, page: u64, version: Version, region: &Region, offset: usize) {
        for (at, word) in self.words(page, version).enumerate() {
            region.store_relaxed(offset + at * WORD, word.to_le());
        }
    }

    /// Overwrites the beginning and end of a buffer with bytes that differ from every page, so that a READ without
    /// effect is detected.
    pub(super) fn spoil(&self, bytes: &mut [u8]) {
        for at in [0, self.len_bytes - WORD] {
            bytes[at..at + WORD].fill(0);
        }
    }

    /// Does the same at a location of a region.
    pub(super) fn spoil_region(&self, region: &Region, offset: usize) {
        for at in [0, self.len_bytes - WORD] {
            region.store_relaxed(offset + at, 0);
        }
    }

    /// Returns the version of the page that `bytes` contain; `None` if any of them is wrong.
    pub(super) fn version(&self, page: u64, bytes: &[u8]) -> Option<Version> {
        let found =
            bytes.chunks_exact(WORD).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("a word")));
        self.version_of(page, bytes.len(), found)
    }

    /// Returns the same for bytes at a location of a region.
    pub(super) fn version_in_region(&self, page: u64, region: &Region, offset: usize) -> Option<Version> {
        let words = self.len_bytes / WORD;
        let found = (0..words).map(|at| u64::from_le(region.load_relaxed(offset + at * WORD)));
        self.version_of(page, self.len_bytes, found)
    }

    fn version_of(
        &self,
        page: u64,
        len_bytes: usize,
        found: impl Iterator<Item = u64> + Clone,
    ) -> Option<Version> {
        let is = |version| {
            // Not `all`: without an early exit the compiler vectorizes the loop.
            let words = self.words(page, version).zip(found.clone());
            len_bytes == self.len_bytes
                && words.fold(0, |wrong, (wanted, found)| wrong | (wanted ^ found)) == 0
        };
        [Version::Written, Version::Granted].into_iter().find(|version| is(*version))
    }
}

/// Pages of one memory server that have been written.
pub(super) struct Written(Vec<AtomicU64>);

impl Written {
    pub(super) fn none_of(pages: &Pages) -> Self {
        Self((0..pages.count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records a completed WRITE of the page.
    pub(super) fn add(&self, page: u64) {
        self.0[page as usize / 64].fetch_or(1 << (page % 64), Ordering::Release);
    }

    /// Returns whether a WRITE of the page has completed: READs that begin later must return it.
    pub(super) fn has(&self, page: u64) -> bool {
        self.0[page as usize / 64].load(Ordering::Acquire) & 1 << (page % 64) != 0
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}

/// Checks the result of a READ.
///
/// # Errors
/// Returns a description of the fault.
pub(super) fn check_read(found: Option<Version>, page: u64, was_written: bool) -> Result<(), String> {
    match found {
        None => Err(format!("wrong bytes: a READ of page {page} brought bytes that do not belong there")),
        Some(Version::Granted) if was_written => {
            Err(format!("wrong bytes: a READ of page {page} returned the contents before a completed WRITE"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifies_place_and_version_and_every_byte_of_a_page() {
        let pages = Pages::of(64, 0, 100, 7);
        let mut bytes = vec![0; 64];
        for version in [Version::Granted, Version::Written] {
            pages.fill(5, version, &mut bytes);
            assert_eq!(pages.version(5, &bytes), Some(version));
            assert_eq!(pages.version(6, &bytes), None, "of another page");
            assert_eq!(Pages::of(64, 0, 100, 8).version(5, &bytes), None, "of another run");
            assert_eq!(pages.version(5, &bytes[..56]), None, "too short");
            for at in 0..64 {
                bytes[at] ^= 0x10;
                assert_eq!(pages.version(5, &bytes), None, "byte {at}");
                bytes[at] ^= 0x10;
            }
            pages.spoil(&mut bytes);
            assert_eq!(pages.version(5, &bytes), None);
        }
    }

    #[test]
    fn a_read_after_a_write_that_was_over_must_bring_it() {
        let pages = Pages::of(8, 0, 100, 0);
        let written = Written::none_of(&pages);
        assert!(!written.has(70));
        written.add(70);
        assert!(written.has(70) && !written.has(69) && written.count() == 1);
        assert!(check_read(Some(Version::Granted), 70, false).is_ok());
        assert!(check_read(Some(Version::Written), 70, false).is_ok(), "of a WRITE under way");
        assert!(
            check_read(Some(Version::Granted), 70, true).unwrap_err().contains("before a completed WRITE")
        );
        assert!(check_read(None, 70, false).unwrap_err().contains("wrong bytes"));
    }
}
