//! The index as seen by its only writer: a table in memory from which clients READ at any time.
//!
//! A key may be in any entry that its scheme allows. To free an entry, entries move along the shortest path to a free
//! one; each is copied before its old position is overwritten. With three entries at independent positions this is
//! cuckoo hashing; with six adjacent entries, hopscotch hashing.

use std::sync::Arc;

use farcall_link::Region;

use super::entry::{Checksums, ENTRY_BYTES, Entry, Layout};
use super::{Of, Scheme};

/// Maximum number of entries searched for a free one before the index counts as full. At a load of three quarters
/// about ten suffice.
const SEARCH_MAX: usize = 2_000;
/// Maximum number of blocks in a chain, and so of blocks that a GET reads.
pub(super) const CHAIN_BLOCKS_MAX: u32 = 16;

pub(super) struct Index<S> {
    region: Arc<Region>,
    checksums: Checksums,
    layout: Layout,
    used: u32,
    /// State of the search for a free entry: each entry with the index in this list of the entry that could move to
    /// it.
    search: Vec<(u32, usize)>,
    /// For each entry, the number of the last search that visited it.
    seen: Vec<u32>,
    searches: u32,
    /// First entries of the blocks that are in no chain.
    spare: Vec<u32>,
    /// Buffer for a key and its value while its entry moves.
    moving: Vec<u8>,
    scheme: Of<S>,
}

impl<S: Scheme> Index<S> {
    /// Writes an empty entry everywhere; empty entries have checksums, too.
    pub fn new(region: Arc<Region>, layout: Layout, checksums: Checksums) -> Self {
        let index = Self {
            region,
            checksums,
            layout,
            used: 0,
            search: Vec::new(),
            seen: vec![0; layout.entries as usize],
            searches: 0,
            spare: (0..layout.blocks).rev().map(|block| layout.entries + block * S::SPAN).collect(),
            moving: Vec::new(),
            scheme: Of::<S>::default(),
        };
        (0..layout.slots::<S>()).for_each(|slot| index.write(slot, Entry::default(), &[]));
        index
    }

    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the checksum of key and value that an entry stores.
    pub fn checksum_of(&self, pair: &[u8]) -> u64 {
        self.checksums.of(pair)
    }

    /// Returns the entries with this hash.
    pub fn with_hash(&self, hash: u64) -> impl Iterator<Item = (u32, Entry)> {
        let chained = self.chain(hash).flat_map(|first| first..first + S::SPAN);
        self.layout
            .slots_of::<S>(hash)
            .chain(chained)
            .map(|slot| (slot, self.read(slot)))
            .filter(move |(_, it)| !it.is_empty() && it.hash == hash)
    }

    /// Replaces the value of the key of an entry.
    pub fn replace(&self, slot: u32, entry: Entry, pair: &[u8]) {
        self.write(slot, entry, pair);
    }

    pub fn remove(&mut self, slot: u32) {
        let hash = self.read(slot).hash;
        self.write(slot, Entry::default(), &[]);
        self.used -= 1;
        if slot >= self.layout.entries {
            self.unlink_if_empty(slot - (slot - self.layout.entries) % S::SPAN, hash);
        }
    }

    /// Returns the blocks chained to the group of a hash, if the scheme has chains.
    fn chain(&self, hash: u64) -> impl Iterator<Item = u32> {
        let first = S::CHAINS.then(|| self.next_of(self.layout.group::<S>(hash, 0))).flatten();
        std::iter::successors(first, |block| self.next_of(*block))
    }

    /// Returns the block that follows a group or block.
    fn next_of(&self, first: u32) -> Option<u32> {
        let link = self.region.load_relaxed(self.link_of(first)) as u32;
        (link != 0).then_some(link)
    }

    fn link_of(&self, first: u32) -> usize {
        self.layout.offset_of(first) + self.layout.link_at()
    }

    fn link(&self, first: u32, next: Option<u32>) {
        self.region.store_release(self.link_of(first), next.unwrap_or(0).into());
    }

    /// Removes a block from its chain once it is empty. A client that still reads the block when it joins another
    /// chain detects this by the changed number of moves.
    fn unlink_if_empty(&mut self, block: u32, hash: u64) {
        if (block..block + S::SPAN).any(|slot| !self.read(slot).is_empty()) {
            return;
        }
        let home = self.layout.group::<S>(hash, 0);
        let before = std::iter::once(home).chain(self.chain(hash)).take_while(|first| *first != block).last();
        if let Some(before) = before {
            self.link(before, self.next_of(block));
            self.count_move();
            self.spare.push(block);
        }
    }

    /// Adds an entry to the chain of its group. Returns whether there was a free entry.
    fn insert_chained(&mut self, entry: Entry, pair: &[u8]) -> bool {
        if !S::CHAINS {
            return false;
        }
        let free = self.chain(entry.hash).flat_map(|first| first..first + S::SPAN);
        let free = free.into_iter().find(|slot| self.read(*slot).is_empty());
        if let Some(slot) = free {
            self.write(slot, entry, pair);
            self.used += 1;
            return true;
        }
        let home = self.layout.group::<S>(entry.hash, 0);
        if self.chain(entry.hash).count() as u32 == CHAIN_BLOCKS_MAX {
            return false;
        }
        let Some(block) = self.spare.pop() else { return false };
        let last = self.chain(entry.hash).last().unwrap_or(home);
        self.link(block, None);
        self.write(block, entry, pair);
        self.link(last, Some(block));
        self.used += 1;
        true
    }

    fn count_move(&self) {
        self.region.store_release(0, self.region.load_relaxed(0).wrapping_add(1));
    }

    /// Adds an entry, moving others if necessary. Returns whether there was a free entry; if not, nothing was changed.
    pub fn insert(&mut self, entry: Entry, pair: &[u8]) -> bool {
        let Some(mut at) = self.find_free(entry.hash) else { return self.insert_chained(entry, pair) };
        // From the free entry backwards: each entry is copied to its new position before it is overwritten.
        loop {
            let (free, from) = self.search[at];
            if from == usize::MAX {
                self.write(free, entry, pair);
                self.used += 1;
                return true;
            }
            self.copy(self.search[from].0, free);
            // A client that misses a key between its two positions detects that this number has changed.
            self.count_move();
            at = from;
        }
    }

    /// Searches breadth-first for a path to a free entry. Returns the index of its end in `search`.
    fn find_free(&mut self, hash: u64) -> Option<usize> {
        self.searches = self.searches.wrapping_add(1);
        self.search.clear();
        self.follow(hash, usize::MAX);
        let mut at = 0;
        while at < self.search.len() {
            let entry = self.read(self.search[at].0);
            if entry.is_empty() {
                return Some(at);
            }
            if self.search.len() < SEARCH_MAX {
                self.follow(entry.hash, at);
            }
            at += 1;
        }
        None
    }

    /// Adds the entries for a hash to the search, each only once, so that no path crosses itself.
    fn follow(&mut self, hash: u64, from: usize) {
        for slot in self.layout.slots_of::<S>(hash) {
            let seen = &mut self.seen[slot as usize];
            if *seen != self.searches {
                *seen = self.searches;
                self.search.push((slot, from));
            }
        }
    }

    fn copy(&mut self, from: u32, to: u32) {
        let (entry, mut pair) = (self.read(from), std::mem::take(&mut self.moving));
        pair.clear();
        if self.layout.is_inline(&entry) {
            self.append_inline(from, &entry, &mut pair);
        }
        self.write(to, entry, &pair);
        self.moving = pair;
    }

    /// Appends the key and the value stored inline after an entry.
    pub fn append_inline(&self, slot: u32, entry: &Entry, out: &mut Vec<u8>) {
        self.region.append_to(self.layout.offset_of(slot) + ENTRY_BYTES, entry.len_bytes as usize, out);
    }

    /// Returns an entry. The value is consistent, because only this thread writes.
    fn read(&self, slot: u32) -> Entry {
        let at = self.layout.offset_of(slot);
        let words = [0, 8, 16, 24].map(|word| self.region.load_relaxed(at + word));
        self.checksums.open(words).unwrap_or_default()
    }

    /// Writes an entry. Each store of its words is ordered after all earlier writes: the extent, and the move counter
    /// of a copy. Inline bytes may be overwritten before the entry is; its checksum detects this.
    fn write(&self, slot: u32, entry: Entry, pair: &[u8]) {
        let at = self.layout.offset_of(slot);
        if self.layout.is_inline(&entry) {
            self.region.copy_in(at + ENTRY_BYTES, pair);
        }
        for (word, value) in self.checksums.seal(entry).into_iter().enumerate() {
            self.region.store_release(at + 8 * word, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bypass::store::tests::region;
    use crate::{farm::Farm, pilaf::Pilaf};
    use std::sync::atomic::{AtomicBool, Ordering};

    const ENTRIES: u32 = 64;
    /// Number of keys that are always in the index.
    const STABLE: u64 = 20;
    const ROUNDS: u64 = 3_000;

    /// Inserts an entry whose inline value is its hash.
    fn insert<S: Scheme>(index: &mut Index<S>, hash: u64) -> bool {
        let pair = hash.to_ne_bytes();
        let checksum = index.checksum_of(&pair);
        index.insert(Entry { hash, granule: 0, len_bytes: 8, checksum }, &pair)
    }

    /// Looks up a key like a client, with loads in place of READs. `None`: torn.
    fn finds<S: Scheme>(memory: &Region, checksums: &Checksums, hash: u64) -> Option<bool> {
        let mut is_whole = true;
        let layout = Layout::of::<S>(ENTRIES, 8);
        let link = |first: u32| memory.load_acquire(layout.offset_of(first) + layout.link_at()) as u32;
        let mut slots: Vec<u32> = layout.slots_of::<S>(hash).collect();
        let mut at = 0;
        while at < slots.len() {
            let slot = slots[at];
            at += 1;
            if S::CHAINS && at % S::SPAN as usize == 0 && at < 100 {
                let next = link(slots[at - S::SPAN as usize]);
                if next != 0 {
                    slots.extend(next..next + S::SPAN);
                }
            }
            let at = layout.offset_of(slot);
            let words = [0, 8, 16, 24].map(|word| memory.load_acquire(at + word));
            let Some(entry) = checksums.open(words) else {
                is_whole = false;
                continue;
            };
            if entry.hash == hash {
                let pair = memory.load_acquire(at + ENTRY_BYTES).to_ne_bytes();
                let is_same = checksums.of(&pair) == entry.checksum;
                assert!(!is_same || pair == hash.to_ne_bytes(), "key {hash} has the value of another");
                return is_same.then_some(true);
            }
        }
        is_whole.then_some(false)
    }

    fn a_key_is_not_missed_while_it_moves<S: Scheme>() {
        let layout = Layout::of::<S>(ENTRIES, 8);
        let memory = region(layout.index_bytes::<S>());
        let mut index = Index::<S>::new(Arc::clone(&memory), layout, Checksums::new(1));
        (1..=STABLE).for_each(|hash| assert!(insert(&mut index, hash)));
        let (is_done, checksums) = (AtomicBool::new(false), Checksums::new(1));
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let (mut lookups, mut missed) = (0_u64, 0_u64);
                while !is_done.load(Ordering::Relaxed) {
                    let hash = 1 + lookups % STABLE;
                    lookups += 1;
                    // The number of moves as read by a previous GET that missed.
                    let before = memory.load_acquire(0);
                    if finds::<S>(&memory, &checksums, hash) == Some(false) {
                        missed += 1;
                        assert_ne!(memory.load_acquire(0), before, "key {hash} missing though nothing moved");
                    }
                }
                (lookups, missed)
            });
            // Other keys fill the index completely, and are removed.
            for round in 0..ROUNDS {
                let others = (1..).map(|number| STABLE + round * 1_000 + number);
                let stored: Vec<u64> = others.take_while(|hash| insert(&mut index, *hash)).collect();
                for hash in stored {
                    let (slot, _) = index.with_hash(hash).next().unwrap();
                    index.remove(slot);
                }
            }
            is_done.store(true, Ordering::Relaxed);
            let (lookups, missed) = reader.join().unwrap();
            let moves = memory.load_relaxed(0);
            assert!(moves > 0, "nothing ever moved");
            println!("{}: {lookups} lookups beside {moves} moves, {missed} between two places", S::NAME);
        });
        assert_eq!(index.used(), STABLE as u32);
        (1..=STABLE).for_each(|hash| assert_eq!(index.with_hash(hash).count(), 1, "{hash}"));
    }

    #[test]
    fn a_key_is_never_missed_while_it_moves() {
        a_key_is_not_missed_while_it_moves::<Pilaf>();
        a_key_is_not_missed_while_it_moves::<Farm>();
    }

    #[test]
    fn chains_keys_of_a_neighbourhood_up_to_a_bound_and_frees_them() {
        let layout = Layout::of::<Farm>(2_048, 8);
        let blocks = layout.blocks as usize;
        let mut index = Index::<Farm>::new(region(layout.index_bytes::<Farm>()), layout, Checksums::new(1));
        let home = layout.group::<Farm>(1, 0);
        let of_one_home = (1..).filter(|hash| layout.group::<Farm>(*hash, 0) == home);
        let stored: Vec<u64> = of_one_home.take_while(|hash| insert(&mut index, *hash)).collect();
        assert_eq!(stored.len() as u32, (1 + CHAIN_BLOCKS_MAX) * Farm::SPAN);
        assert_eq!(index.spare.len(), blocks - CHAIN_BLOCKS_MAX as usize);
        let moves = index.region.load_relaxed(0);
        // Removed from the middle and the ends first, then the rest.
        let (even, odd): (Vec<&u64>, Vec<&u64>) = stored.iter().partition(|hash| **hash / 7 % 2 == 0);
        for hash in even.into_iter().chain(odd) {
            let (slot, _) = index.with_hash(*hash).next().expect("it is there");
            index.remove(slot);
            assert_eq!(index.with_hash(*hash).count(), 0);
        }
        assert_eq!((index.used(), index.spare.len()), (0, blocks), "nothing is lost");
        let told = index.region.load_relaxed(0) - moves;
        assert_eq!(told, u64::from(CHAIN_BLOCKS_MAX), "who stands in a block that is taken away hears of it");
    }
}
