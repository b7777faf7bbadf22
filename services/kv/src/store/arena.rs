//! The memory of the items: one mapping divided into blocks by a two-level segregated-fit allocator.
//!
//! A free block is found, split, merged with its neighbours and listed in constant time. No operation calls the
//! system's allocator, and no size class can starve another: freeing a run of neighbouring blocks always results in
//! one block of their total size. Blocks are counted in granules of 16 bytes and are contiguous. Each begins with its
//! own size and the size of the previous block.
//!
//! The scheme is that of Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems" (ECRTS 2004).

use std::io;

use super::region::Region;

/// The unit of allocation, in bytes.
pub(crate) const GRANULE_BYTES: usize = 16;

/// Length of the header of each block in bytes.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;

/// Maximum number of granules of an arena: sizes share their word with one flag (32 GiB).
pub(crate) const GRANULES_MAX: u32 = (1 << 31) - 1;

/// First granule of a block. Granule 0 is never a block, so that zero can mean "none".
pub(crate) type Granule = u32;

const FREE: u32 = 1 << 31;
const SECOND_LEVEL_LOG2: u32 = 4;
const SECOND_LEVELS: usize = 1 << SECOND_LEVEL_LOG2;
const FIRST_LEVELS: usize = (31 - SECOND_LEVEL_LOG2 as usize) + 1;

pub(crate) struct Arena {
    bytes: Region<u8>,
    /// The last granule, a block in use without an owner: the end of every walk.
    sentinel: Granule,
    first_level: u32,
    second_level: [u16; FIRST_LEVELS],
    heads: [[Granule; SECOND_LEVELS]; FIRST_LEVELS],
    /// Position of the eviction hand: always the start of a block.
    hand: Granule,
    used_granules: u32,
}

/// A block as seen by a walk in address order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) at: Granule,
    pub(crate) granules: u32,
    pub(crate) free: bool,
}

impl Arena {
    /// Creates an arena of `granules` granules (at least 4, at most [`GRANULES_MAX`]), all free.
    pub(crate) fn new(granules: u32) -> io::Result<Self> {
        debug_assert!((4..=GRANULES_MAX).contains(&granules));
        let bytes = Region::map(granules as usize * GRANULE_BYTES)?;
        let sentinel = granules - 1;
        let mut arena = Arena {
            bytes,
            sentinel,
            first_level: 0,
            second_level: [0; FIRST_LEVELS],
            heads: [[0; SECOND_LEVELS]; FIRST_LEVELS],
            hand: 1,
            used_granules: 0,
        };
        arena.set_word(sentinel, 0, 1);
        arena.set_block(1, sentinel - 1, true);
        arena.set_word(1, 4, 0);
        arena.file(1);
        Ok(arena)
    }

    /// Returns the number of granules for `bytes` bytes and a block header.
    #[inline]
    pub(crate) fn granules_for(bytes: usize) -> u32 {
        (bytes + BLOCK_HEADER_BYTES).div_ceil(GRANULE_BYTES) as u32
    }

    /// Returns the length of the mapping in bytes.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.bytes.mapped_bytes()
    }

    /// Returns the length of all blocks in use in bytes, headers and rounding included.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_granules as usize * GRANULE_BYTES
    }

    /// Returns the complete mapping for reading items; a block's contents begin [`BLOCK_HEADER_BYTES`] after its
    /// start.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the complete mapping for writing items.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the block that starts at `at`.
    #[inline]
    pub(crate) fn block(&self, at: Granule) -> Block {
        let word = self.word(at, 0);
        Block { at, granules: word & !FREE, free: word & FREE != 0 }
    }

    /// Allocates a block of `granules`; returns `None` if no free block is large enough.
    pub(crate) fn allocate(&mut self, granules: u32) -> Option<Granule> {
        let at = self.find(granules)?;
        self.unfile(at);
        let rest = self.block(at).granules - granules;
        if rest > 0 {
            self.set_block(at + granules, rest, true);
            self.file(at + granules);
        }
        self.set_block(at, granules, false);
        self.used_granules += granules;
        Some(at)
    }

    /// Frees the block at `at` and merges it with free neighbours.
    pub(crate) fn free(&mut self, at: Granule) {
        let Block { granules, free, .. } = self.block(at);
        debug_assert!(!free, "block {at} is freed twice");
        self.used_granules -= granules;
        let (mut start, mut end) = (at, at + granules);
        let before_granules = self.word(at, 4);
        if before_granules > 0 && self.block(at - before_granules).free {
            start = at - before_granules;
            self.unfile(start);
        }
        let next = self.block(end);
        if next.free {
            self.unfile(end);
            end += next.granules;
        }
        if (start..end).contains(&self.hand) {
            self.hand = start;
        }
        self.set_block(start, end - start, true);
        self.file(start);
    }

    /// Returns the block at the eviction hand, and advances the hand in address order, cyclically.
    pub(crate) fn advance_hand(&mut self) -> Block {
        let block = self.block(self.hand);
        let next = self.hand + block.granules;
        self.hand = if next >= self.sentinel { 1 } else { next };
        block
    }

    // Returns the list of a size: sizes below 16 granules have one list each; above, every power of two is divided
    // into 16.
    fn class(granules: u32) -> (usize, usize) {
        if granules < SECOND_LEVELS as u32 {
            return (0, granules as usize);
        }
        let log2 = granules.ilog2();
        let second = (granules >> (log2 - SECOND_LEVEL_LOG2)) as usize & (SECOND_LEVELS - 1);
        ((log2 - SECOND_LEVEL_LOG2 + 1) as usize, second)
    }

    /// Finds a free block of at least `granules`: the head of the first list in which every block is large enough.
    fn find(&self, granules: u32) -> Option<Granule> {
        let rounding = if granules < SECOND_LEVELS as u32 {
            0
        } else {
            (1 << (granules.ilog2() - SECOND_LEVEL_LOG2)) - 1
        };
        let (first, second) = Self::class(granules.checked_add(rounding).filter(|&sum| sum <= GRANULES_MAX)?);
        let mut first = first;
        let mut seconds = self.second_level.get(first)? & (u16::MAX << second);
        if seconds == 0 {
            let firsts = self.first_level & u32::MAX.checked_shl(first as u32 + 1).unwrap_or(0);
            if firsts == 0 {
                return None;
            }
            first = firsts.trailing_zeros() as usize;
            seconds = self.second_level[first];
        }
        Some(self.heads[first][seconds.trailing_zeros() as usize])
    }

    /// Adds the free block `at` as the head of its list.
    fn file(&mut self, at: Granule) {
        let (first, second) = Self::class(self.block(at).granules);
        let old_head = self.heads[first][second];
        self.set_word(at, 8, old_head);
        self.set_word(at, 12, 0);
        if old_head != 0 {
            self.set_word(old_head, 12, at);
        }
        self.heads[first][second] = at;
        self.second_level[first] |= 1 << second;
        self.first_level |= 1 << first;
    }

    /// Removes the free block `at` from its list.
    fn unfile(&mut self, at: Granule) {
        let (next, previous) = (self.word(at, 8), self.word(at, 12));
        if next != 0 {
            self.set_word(next, 12, previous);
        }
        if previous != 0 {
            self.set_word(previous, 8, next);
            return;
        }
        let (first, second) = Self::class(self.block(at).granules);
        self.heads[first][second] = next;
        if next == 0 {
            self.second_level[first] &= !(1 << second);
            if self.second_level[first] == 0 {
                self.first_level &= !(1 << first);
            }
        }
    }

    /// Writes a block's size, also into the header of the next block.
    fn set_block(&mut self, at: Granule, granules: u32, free: bool) {
        self.set_word(at, 0, if free { granules | FREE } else { granules });
        self.set_word(at + granules, 4, granules);
    }

    #[inline]
    fn word(&self, at: Granule, offset: usize) -> u32 {
        let start = at as usize * GRANULE_BYTES + offset;
        u32::from_ne_bytes(self.bytes[start..start + 4].try_into().expect("four bytes"))
    }

    #[inline]
    fn set_word(&mut self, at: Granule, offset: usize, value: u32) {
        let start = at as usize * GRANULE_BYTES + offset;
        self.bytes[start..start + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk(arena: &Arena) -> Vec<Block> {
        let mut at = 1;
        let mut blocks = Vec::new();
        while at != arena.sentinel {
            let block = arena.block(at);
            assert!(block.granules > 0 && at + block.granules <= arena.sentinel);
            assert_eq!(arena.word(at + block.granules, 4), block.granules, "the block behind {at} knows it");
            blocks.push(block);
            at += block.granules;
        }
        blocks
    }

    #[test]
    fn an_empty_arena_gives_all_but_the_rounding_of_its_class() {
        let mut arena = Arena::new(1026).unwrap();
        assert_eq!(arena.allocate(1024), Some(1));
        assert_eq!(arena.allocate(1), None);
        arena.free(1);
        assert_eq!(walk(&arena), [Block { at: 1, granules: 1024, free: true }]);
    }

    #[test]
    fn sizes_beyond_any_arena_are_refused() {
        let mut arena = Arena::new(64).unwrap();
        assert_eq!(arena.allocate(64), None);
        assert_eq!(arena.allocate(GRANULES_MAX), None);
        assert_eq!(arena.allocate(u32::MAX), None);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_always_merge(
            steps in prop::collection::vec((any::<bool>(), 1u32..200, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut arena = Arena::new(2000).unwrap();
            let mut taken: Vec<(Granule, u32)> = Vec::new();
            for (take, granules, pick) in steps {
                if take {
                    if let Some(at) = arena.allocate(granules) {
                        taken.push((at, granules));
                    }
                } else if !taken.is_empty() {
                    let (at, _) = taken.swap_remove(pick.index(taken.len()));
                    arena.free(at);
                }
                let blocks = walk(&arena);
                prop_assert!(!blocks.windows(2).any(|pair| pair[0].free && pair[1].free));
                let mut in_use: Vec<_> = blocks.iter().filter(|b| !b.free).map(|b| (b.at, b.granules)).collect();
                in_use.sort_unstable();
                taken.sort_unstable();
                prop_assert_eq!(&in_use, &taken);
                prop_assert_eq!(arena.used_granules, taken.iter().map(|t| t.1).sum::<u32>());
                let hand = arena.advance_hand().at;
                prop_assert!(blocks.iter().any(|b| b.at == hand), "the hand stands on a block");
                if let Some(largest) = blocks.iter().filter(|b| b.free).map(|b| b.granules).max() {
                    // The search rounds sizes up, so it may miss a block by less than a sixteenth of the request,
                    // never more.
                    prop_assert!(arena.find((largest - largest / 16).saturating_sub(1).max(1)).is_some());
                }
            }
        }
    }
}
