//! The index as its only writer sees it: a 3-way cuckoo table in memory that clients READ at any moment.

use std::sync::Arc;

use farcall_link::Region;

use super::entry::{Checksums, ENTRIES_AT, Entry, offset_of, slots_of};

/// Entries looked at for a free one, before the index counts as full. At three quarters some ten are enough.
const SEARCH_MAX: usize = 2_000;

pub(super) struct Index {
    region: Arc<Region>,
    checksums: Checksums,
    entries: u32,
    used: u32,
    /// The search for a free entry: entries with the place in this list of the one that could move there.
    search: Vec<(u32, usize)>,
    /// For each entry the last search that came by.
    seen: Vec<u32>,
    searches: u32,
}

/// Memory of an index, in bytes.
pub(super) const fn index_bytes(entries: u32) -> usize {
    // The extents follow it, on a line of their own.
    (ENTRIES_AT + entries as usize * super::entry::ENTRY_BYTES).next_multiple_of(64)
}

impl Index {
    /// Makes all entries empty: empty ones are sealed, too.
    pub fn new(region: Arc<Region>, entries: u32, checksums: Checksums) -> Self {
        let seen = vec![0; entries as usize];
        let index = Self { region, checksums, entries, used: 0, search: Vec::new(), seen, searches: 0 };
        (0..entries).for_each(|slot| index.write(slot, Entry::default()));
        index
    }

    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The checksum that an entry keeps of its extent.
    pub fn checksum_of(&self, extent: &[u8]) -> u64 {
        self.checksums.of(extent)
    }

    /// The entries with this hash.
    pub fn with_hash(&self, hash: u64) -> impl Iterator<Item = (u32, Entry)> {
        let slots = slots_of(hash, self.entries);
        slots
            .into_iter()
            .map(|slot| (slot, self.read(slot)))
            .filter(move |(_, it)| !it.is_empty() && it.hash == hash)
    }

    /// Gives the key of an entry another extent.
    pub fn replace(&self, slot: u32, entry: Entry) {
        self.write(slot, entry);
    }

    pub fn remove(&mut self, slot: u32) {
        self.write(slot, Entry::default());
        self.used -= 1;
    }

    /// Adds an entry; others may move. Returns whether there was room: if not, nothing has changed.
    pub fn insert(&mut self, entry: Entry) -> bool {
        let Some(mut at) = self.find_free(entry.hash) else { return false };
        // From the free entry backwards: each is copied to its new place before anything overwrites it.
        loop {
            let (free, from) = self.search[at];
            if from == usize::MAX {
                self.write(free, entry);
                self.used += 1;
                return true;
            }
            self.write(free, self.read(self.search[from].0));
            // A reader that misses a key between its two places sees that this number has changed.
            self.region.store_release(0, self.region.load_relaxed(0).wrapping_add(1));
            at = from;
        }
    }

    /// Searches in breadth for a way to a free entry; returns its end in `search`.
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

    /// Adds the places of a hash to the search, each once: so no way crosses itself.
    fn follow(&mut self, hash: u64, from: usize) {
        for slot in slots_of(hash, self.entries) {
            let seen = &mut self.seen[slot as usize];
            if *seen != self.searches {
                *seen = self.searches;
                self.search.push((slot, from));
            }
        }
    }

    /// Only this thread writes, so what it reads is whole.
    fn read(&self, slot: u32) -> Entry {
        let at = offset_of(slot);
        let words = [0, 8, 16, 24].map(|word| self.region.load_relaxed(at + word));
        self.checksums.open(words).unwrap_or_default()
    }

    /// Each store comes after all before it: the extent before its entry, a copy before the number of moves.
    fn write(&self, slot: u32, entry: Entry) {
        let at = offset_of(slot);
        for (word, value) in self.checksums.seal(entry).into_iter().enumerate() {
            self.region.store_release(at + 8 * word, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::ENTRY_BYTES;
    use super::*;
    use crate::pilaf::store::tests::region;
    use std::sync::atomic::{AtomicBool, Ordering};

    const ENTRIES: u32 = 64;
    /// Always there.
    const STABLE: u64 = 20;
    const ROUNDS: u64 = 3_000;

    fn entry(hash: u64) -> Entry {
        Entry { hash, granule: 1, len_bytes: 1, checksum: 0 }
    }

    /// What a client does, with loads in place of READs. `None`: torn.
    fn finds(memory: &Region, checksums: &Checksums, hash: u64) -> Option<bool> {
        for slot in slots_of(hash, ENTRIES) {
            let words = [0, 8, 16, 24].map(|word| memory.load_acquire(offset_of(slot) + word));
            if checksums.open(words)?.hash == hash {
                return Some(true);
            }
        }
        Some(false)
    }

    #[test]
    fn a_key_is_never_missed_while_it_moves() {
        let memory = region(ENTRIES_AT + ENTRIES as usize * ENTRY_BYTES);
        let mut index = Index::new(Arc::clone(&memory), ENTRIES, Checksums::new(1));
        (1..=STABLE).for_each(|hash| assert!(index.insert(entry(hash))));
        let (is_done, checksums) = (AtomicBool::new(false), Checksums::new(1));
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let (mut looks, mut missed) = (0_u64, 0_u64);
                while !is_done.load(Ordering::Relaxed) {
                    let hash = 1 + looks % STABLE;
                    looks += 1;
                    // As if the GET before had missed, and so read the number of moves.
                    let before = memory.load_acquire(0);
                    if finds(&memory, &checksums, hash) == Some(false) {
                        missed += 1;
                        assert_ne!(memory.load_acquire(0), before, "key {hash} missing though nothing moved");
                    }
                }
                (looks, missed)
            });
            // Others fill the index to the brim, and leave.
            for round in 0..ROUNDS {
                let others = (1..).map(|number| STABLE + round * 1_000 + number);
                let stored: Vec<u64> = others.take_while(|hash| index.insert(entry(*hash))).collect();
                for hash in stored {
                    let (slot, _) = index.with_hash(hash).next().unwrap();
                    index.remove(slot);
                }
            }
            is_done.store(true, Ordering::Relaxed);
            let (looks, missed) = reader.join().unwrap();
            println!("{looks} looks beside {} moves, {missed} between two places", memory.load_relaxed(0));
        });
        assert_eq!(index.used(), STABLE as u32);
        (1..=STABLE).for_each(|hash| assert_eq!(index.with_hash(hash).count(), 1, "{hash}"));
    }
}
