//! An index entry: 32 bytes with the hash and the location of a key and its value, and checksums that detect torn
//! reads. Also the layout of the index.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::Scheme;

pub(super) const ENTRY_BYTES: usize = 32;
/// Offset of the first entry; the cache line before it holds the number of moves.
pub(super) const ENTRIES_AT: usize = 64;

/// The sizes that determine the memory layout of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub entries: u32,
    /// Capacity for a key and its value after each entry, in bytes.
    pub inline_bytes: u32,
    /// Number of overflow groups of entries, for keys whose neighbourhood is full.
    pub blocks: u32,
}

/// Number of entries per overflow block.
const ENTRIES_OF_BLOCK: u32 = 32;
/// Length of the link after key and value if there are overflow blocks: the first entry of the next block, or 0.
pub(super) const LINK_BYTES: usize = 8;

impl Layout {
    pub fn of<S: Scheme>(entries: u32, inline_bytes: u32) -> Self {
        let blocks = if S::CHAINS { entries.div_ceil(ENTRIES_OF_BLOCK) } else { 0 };
        Self { entries, inline_bytes, blocks }
    }

    /// Returns the distance from one entry to the next in bytes.
    pub fn stride(&self) -> usize {
        self.link_at() + if self.blocks > 0 { LINK_BYTES } else { 0 }
    }

    /// Returns the offset of the link within an entry.
    pub fn link_at(&self) -> usize {
        ENTRY_BYTES + (self.inline_bytes as usize).next_multiple_of(ENTRY_BYTES)
    }

    /// Returns the number of entries, including those of blocks.
    pub fn slots<S: Scheme>(&self) -> u32 {
        self.entries.saturating_add(self.blocks.saturating_mul(S::SPAN))
    }

    /// Returns whether a block begins at entry `first`.
    pub fn is_block<S: Scheme>(&self, first: u64) -> bool {
        let first = first.checked_sub(self.entries.into());
        first.is_some_and(|at| at % u64::from(S::SPAN) == 0 && at / u64::from(S::SPAN) < self.blocks.into())
    }

    pub fn offset_of(&self, slot: u32) -> usize {
        ENTRIES_AT + slot as usize * self.stride()
    }

    /// Returns the length of the index in bytes.
    pub fn index_bytes<S: Scheme>(&self) -> usize {
        // The extents follow in the same registration, aligned to a cache line.
        self.offset_of(self.slots::<S>()).next_multiple_of(64)
    }

    /// Returns whether key and value are stored inline, after the entry.
    pub fn is_inline(&self, entry: &Entry) -> bool {
        entry.len_bytes <= self.inline_bytes
    }

    /// Returns the first entry of a group that may hold a key with this hash.
    pub fn group<S: Scheme>(&self, hash: u64, group: u32) -> u32 {
        // Each group mixes all bits of the hash again (splitmix64); otherwise keys that share one group would share
        // all.
        let mut mixed = hash.wrapping_add(u64::from(group + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let places = self.entries.saturating_sub(S::SPAN - 1);
        (((mixed >> 32) * u64::from(places)) >> 32) as u32
    }

    /// Returns the entries of the groups that may hold a key with this hash, in the order of lookup.
    pub fn slots_of<S: Scheme>(self, hash: u64) -> impl Iterator<Item = u32> {
        (0..S::GROUPS).flat_map(move |group| {
            let first = self.group::<S>(hash, group);
            first..first + S::SPAN
        })
    }
}

/// The contents of an entry without its own checksum. The default is an empty entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub hash: u64,
    /// Offset of the extent in granules, if there is one.
    pub granule: u32,
    /// Length of key and value in bytes, including the length prefix of the key; 0 for an empty entry.
    pub len_bytes: u32,
    /// Checksum of key and value.
    pub checksum: u64,
}

impl Entry {
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }
}

/// Computes and verifies checksums with the seed of a store.
pub(super) struct Checksums(RapidSecrets);

impl Checksums {
    pub fn new(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    pub fn of(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.0)
    }

    /// Returns the words of an entry as stored in memory.
    pub fn seal(&self, entry: Entry) -> [u64; 4] {
        let place = u64::from(entry.granule) << 32 | u64::from(entry.len_bytes);
        let words = [entry.hash, place, entry.checksum];
        [words[0], words[1], words[2], self.of_words(words)]
    }

    /// Returns the entry if its checksum matches.
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

    fn spreads<S: Scheme>() {
        let layout = Layout::of::<S>(15 + S::SPAN, 0);
        let mut counts = [0_u32; 16];
        for hash in 0..10_000 {
            (0..S::GROUPS).for_each(|group| counts[layout.group::<S>(hash, group) as usize] += 1);
        }
        let mean = 10_000 * S::GROUPS / 16;
        assert!(counts.iter().all(|count| count.abs_diff(mean) < 175), "{counts:?}");
    }

    #[test]
    fn hashes_spread_over_all_entries() {
        spreads::<crate::pilaf::Pilaf>();
        spreads::<crate::farm::Farm>();
    }
}
