//! One entry of the index: 32 bytes that say whose key and value are where, and whether they were read whole; and
//! where entries are.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::Scheme;

pub(super) const ENTRY_BYTES: usize = 32;
/// Where the entries begin: the first line holds the number of moves.
pub(super) const ENTRIES_AT: usize = 64;

/// The numbers that say where in memory an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub entries: u32,
    /// Room for a key and its value behind each entry.
    pub inline_bytes: u32,
    /// Groups of entries beyond these, for keys whose neighbourhood is full.
    pub blocks: u32,
}

/// One overflow block for so many entries.
const ENTRIES_OF_BLOCK: u32 = 32;
/// Behind the key and the value, where there are blocks: the first entry of the next block, or 0.
pub(super) const LINK_BYTES: usize = 8;

impl Layout {
    pub fn of<S: Scheme>(entries: u32, inline_bytes: u32) -> Self {
        let blocks = if S::CHAINS { entries.div_ceil(ENTRIES_OF_BLOCK) } else { 0 };
        Self { entries, inline_bytes, blocks }
    }

    /// From one entry to the next.
    pub fn stride(&self) -> usize {
        self.link_at() + if self.blocks > 0 { LINK_BYTES } else { 0 }
    }

    /// From an entry to its link.
    pub fn link_at(&self) -> usize {
        ENTRY_BYTES + (self.inline_bytes as usize).next_multiple_of(ENTRY_BYTES)
    }

    /// Entries, those of blocks included.
    pub fn slots<S: Scheme>(&self) -> u32 {
        self.entries.saturating_add(self.blocks.saturating_mul(S::SPAN))
    }

    /// Whether a block begins there.
    pub fn is_block<S: Scheme>(&self, first: u64) -> bool {
        let first = first.checked_sub(self.entries.into());
        first.is_some_and(|at| at % u64::from(S::SPAN) == 0 && at / u64::from(S::SPAN) < self.blocks.into())
    }

    pub fn offset_of(&self, slot: u32) -> usize {
        ENTRIES_AT + slot as usize * self.stride()
    }

    /// Memory of the index.
    pub fn index_bytes<S: Scheme>(&self) -> usize {
        // The extents follow it, on a line of their own.
        self.offset_of(self.slots::<S>()).next_multiple_of(64)
    }

    /// Whether the key and the value of an entry are behind it.
    pub fn is_inline(&self, entry: &Entry) -> bool {
        entry.len_bytes <= self.inline_bytes
    }

    /// The first entry of one of the groups that may hold a key with this hash.
    pub fn group<S: Scheme>(&self, hash: u64, group: u32) -> u32 {
        // Each group mixes all bits anew (splitmix64), or keys that share one entry would share all.
        let mut mixed = hash.wrapping_add(u64::from(group + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let places = self.entries.saturating_sub(S::SPAN - 1);
        (((mixed >> 32) * u64::from(places)) >> 32) as u32
    }

    /// The entries of its groups that may hold a key with this hash, in the order in which they are looked at.
    pub fn slots_of<S: Scheme>(self, hash: u64) -> impl Iterator<Item = u32> {
        (0..S::GROUPS).flat_map(move |group| {
            let first = self.group::<S>(hash, group);
            first..first + S::SPAN
        })
    }
}

/// The words of an entry but for its own checksum. The default is an empty one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub hash: u64,
    /// Place of the extent, in granules, if there is one.
    pub granule: u32,
    /// Length of key and value, with the key's length in front; 0 of an empty entry.
    pub len_bytes: u32,
    /// Their checksum.
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
