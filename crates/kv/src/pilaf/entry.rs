//! One entry of the index: 32 bytes that say whose extent is where, and whether they were read whole.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

pub(super) const ENTRY_BYTES: usize = 32;
/// Where the entries begin: the first line holds the number of moves.
pub(super) const ENTRIES_AT: usize = 64;
/// Entries that may hold a key.
pub(super) const WAYS: usize = 3;

/// Where in memory an entry is.
pub(super) fn offset_of(slot: u32) -> usize {
    ENTRIES_AT + slot as usize * ENTRY_BYTES
}

/// The entries that may hold a key with this hash, in the order in which they are looked at.
pub(super) fn slots_of(hash: u64, entries: u32) -> [u32; WAYS] {
    [1, 2, 3].map(|way: u64| {
        // Each way mixes all bits anew (splitmix64), or keys that share one slot would share all.
        let mut mixed = hash.wrapping_add(way.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (((mixed >> 32) * u64::from(entries)) >> 32) as u32
    })
}

/// The words of an entry but for its own checksum. The default is an empty one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub hash: u64,
    /// Place of the extent, in granules.
    pub granule: u32,
    /// Length of the extent; 0 of an empty entry.
    pub len_bytes: u32,
    /// The checksum of the extent.
    pub checksum: u64,
}

impl Entry {
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }
}

/// Makes and verifies checksums, with the seed of a store.
pub(super) struct Checksums(RapidSecrets);

impl Checksums {
    pub fn new(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    pub fn of(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.0)
    }

    /// The words of an entry as they are in memory.
    pub fn seal(&self, entry: Entry) -> [u64; 4] {
        let place = u64::from(entry.granule) << 32 | u64::from(entry.len_bytes);
        let words = [entry.hash, place, entry.checksum];
        [words[0], words[1], words[2], self.of_words(words)]
    }

    /// The entry, if its words belong together.
    pub fn open(&self, words: [u64; 4]) -> Option<Entry> {
        let [hash, place, checksum, own] = words;
        (self.of_words([hash, place, checksum]) == own).then_some(Entry {
            hash,
            granule: (place >> 32) as u32,
            len_bytes: place as u32,
            checksum,
        })
    }

    fn of_words(&self, words: [u64; 3]) -> u64 {
        let mut bytes = [0; 24];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.of(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_which_any_word_is_of_another_is_not_opened() {
        let checksums = Checksums::new(7);
        let one = Entry { hash: 1, granule: 2, len_bytes: 3, checksum: 4 };
        let two = Entry { hash: 5, granule: 6, len_bytes: 7, checksum: 8 };
        for [a, b] in [[one, two], [one, Entry::default()]] {
            let (a_words, b_words) = (checksums.seal(a), checksums.seal(b));
            assert_eq!(checksums.open(a_words), Some(a));
            for torn in 1..15_usize {
                let words =
                    std::array::from_fn(|at| if torn >> at & 1 == 0 { a_words[at] } else { b_words[at] });
                assert_eq!(checksums.open(words), None, "words {torn:#b} of another entry");
            }
        }
        assert_eq!(checksums.open([0; 4]), None, "memory that nobody wrote is no entry");
    }

    #[test]
    fn hashes_spread_over_all_entries() {
        let mut counts = [0_u32; 16];
        for hash in 0..10_000 {
            slots_of(hash, 16).iter().for_each(|slot| counts[*slot as usize] += 1);
        }
        assert!(counts.iter().all(|count| (1_700..2_050).contains(count)), "{counts:?}");
    }
}
