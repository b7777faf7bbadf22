//! A key lookup as a state machine: completed READs in, the next READ out. Contents with a wrong checksum are never
//! used.

use super::entry::{Checksums, ENTRY_BYTES, Entry, Layout};
use super::extents::{GRANULE_BYTES, decode_pair};
use super::index::CHAIN_BLOCKS_MAX;
use super::store::{INLINE_MAX_BYTES, VALUE_MAX_BYTES, pair_max_bytes};
use super::{Of, Scheme};
use crate::key::{HashSeed, Key, Router};

/// Parameters of a store that a client reads.
pub struct Table<S> {
    pub(super) layout: Layout,
    pair_max_bytes: usize,
    pub(super) checksums: Checksums,
    router: Router,
    scheme: Of<S>,
}

/// A READ that a lookup requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadTarget {
    /// A group of entries.
    Entries {
        /// First entry of the group.
        first: u32,
    },
    /// A key with its value.
    Pair {
        /// Offset in the extents, in granules.
        granule: u32,
        /// Length in bytes.
        len_bytes: u32,
    },
    /// The number of moves.
    Moves,
}

/// Result of processing a READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupStep {
    /// The lookup continues with this READ.
    Read(ReadTarget),
    /// The value was appended to the caller's vector.
    Found,
    /// The key is not in the store. Contains the current number of moves.
    Missing(u64),
    /// The data changed during the READ; the lookup must be repeated.
    Torn,
    /// Entries moved during the lookup, which must be repeated. Contains the current number of moves.
    Moved(u64),
    /// The contents are invalid for any store.
    Invalid(&'static str),
}

impl<S: Scheme> Table<S> {
    /// Creates the parameters; `None` if no store can have these sizes.
    #[must_use]
    pub fn new(entries: u32, inline_bytes: u32, value_max_bytes: u64, seed: u64) -> Option<Self> {
        let value_max_bytes = usize::try_from(value_max_bytes).ok()?;
        let is_possible =
            entries >= S::SPAN && inline_bytes <= INLINE_MAX_BYTES && value_max_bytes <= VALUE_MAX_BYTES;
        is_possible.then(|| Self {
            layout: Layout::of::<S>(entries, inline_bytes),
            pair_max_bytes: pair_max_bytes(value_max_bytes),
            checksums: Checksums::new(seed),
            router: Router::new(HashSeed(seed), 1),
            scheme: Of::<S>::default(),
        })
    }

    /// Returns the router, which hashes keys.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Returns the maximum length of a READ in bytes.
    #[must_use]
    pub fn read_max_bytes(&self) -> usize {
        self.group_bytes().max(self.pair_max_bytes)
    }

    /// Returns whether the data is in the index (otherwise in the extents), its offset and its length in bytes.
    #[must_use]
    pub fn place(&self, target: ReadTarget) -> (bool, usize, usize) {
        match target {
            ReadTarget::Entries { first } => (true, self.layout.offset_of(first), self.group_bytes()),
            ReadTarget::Pair { granule, len_bytes } => {
                (false, granule as usize * GRANULE_BYTES, len_bytes as usize)
            }
            ReadTarget::Moves => (true, 0, 8),
        }
    }

    fn group_bytes(&self) -> usize {
        self.layout.stride() * S::SPAN as usize
    }
}

/// State of a key lookup.
#[derive(Debug, Clone, Copy)]
pub struct KeyLookup {
    hash: u64,
    /// Number of moves at the start of the lookup, or earlier.
    moves: u64,
    group: u32,
    /// Number of blocks of the chain visited so far, and first entry of the current block.
    blocks: u32,
    block: u32,
    /// Number of entries in the group that have the hash of the key but hold another key.
    others: u32,
    target: ReadTarget,
    /// Checksum of the requested pair.
    checksum: u64,
}

impl KeyLookup {
    /// Starts a lookup. `moves` is a number of moves that was read before.
    #[must_use]
    pub fn new<S: Scheme>(table: &Table<S>, key: &Key<'_>, moves: u64) -> Self {
        let first = table.layout.group::<S>(key.hash(), 0);
        Self {
            hash: key.hash(),
            moves,
            group: 0,
            blocks: 0,
            block: 0,
            others: 0,
            target: ReadTarget::Entries { first },
            checksum: 0,
        }
    }

    /// Returns the READ that the lookup currently requests.
    #[must_use]
    pub fn target(&self) -> ReadTarget {
        self.target
    }

    /// Processes the bytes of the requested READ. If `key` is found, appends its value to `value`; otherwise leaves
    /// `value` unchanged.
    pub fn step<S: Scheme>(
        &mut self,
        table: &Table<S>,
        key: &[u8],
        bytes: &[u8],
        value: &mut Vec<u8>,
    ) -> LookupStep {
        let step = match self.target {
            ReadTarget::Entries { .. } => self.entries(table, key, bytes, value),
            ReadTarget::Pair { .. } if table.checksums.of(bytes) != self.checksum => LookupStep::Torn,
            ReadTarget::Pair { .. } => match decode_pair(bytes) {
                Some((found, rest)) if found == key => {
                    value.extend_from_slice(rest);
                    LookupStep::Found
                }
                Some(_) => {
                    self.others += 1;
                    self.group(table)
                }
                None => LookupStep::Invalid("an extent without key and value"),
            },
            ReadTarget::Moves => {
                let moves = word(bytes, 0);
                // `self.moves` was read before this lookup began, so equal numbers mean that no entry moved during the
                // lookup.
                if moves == self.moves { LookupStep::Missing(moves) } else { LookupStep::Moved(moves) }
            }
        };
        if let LookupStep::Read(target) = step {
            self.target = target;
        }
        step
    }

    fn entries<S: Scheme>(
        &mut self,
        table: &Table<S>,
        key: &[u8],
        bytes: &[u8],
        value: &mut Vec<u8>,
    ) -> LookupStep {
        let (mut is_whole, mut others) = (true, 0);
        for slot in bytes.chunks_exact(table.layout.stride()) {
            let (entry, pair) = slot.split_at(ENTRY_BYTES);
            let Some(entry) = table.checksums.open([0, 8, 16, 24].map(|at| word(entry, at))) else {
                is_whole = false;
                continue;
            };
            if entry.is_empty() || entry.hash != self.hash {
                continue;
            }
            if entry.len_bytes as usize > table.pair_max_bytes {
                return LookupStep::Invalid("a value longer than announced");
            }
            if !table.layout.is_inline(&entry) {
                if others == self.others {
                    return self.pair(&entry);
                }
                others += 1;
                continue;
            }
            let pair = &pair[..entry.len_bytes as usize];
            if table.checksums.of(pair) != entry.checksum {
                is_whole = false;
                continue;
            }
            match decode_pair(pair) {
                Some((found, rest)) if found == key => {
                    value.extend_from_slice(rest);
                    return LookupStep::Found;
                }
                Some(_) => {}
                None => return LookupStep::Invalid("an entry without key and value"),
            }
        }
        if !is_whole {
            return LookupStep::Torn;
        }
        self.others = 0;
        if S::CHAINS {
            match word(bytes, table.layout.link_at()) {
                0 => return LookupStep::Read(ReadTarget::Moves),
                next if !table.layout.is_block::<S>(next) => {
                    return LookupStep::Invalid("a link to no block");
                }
                // Blocks that were removed and reused may form a cycle.
                _ if self.blocks == CHAIN_BLOCKS_MAX => return LookupStep::Torn,
                next => (self.blocks, self.block) = (self.blocks + 1, next as u32),
            }
            return self.group(table);
        }
        self.group += 1;
        if self.group < S::GROUPS { self.group(table) } else { LookupStep::Read(ReadTarget::Moves) }
    }

    fn group<S: Scheme>(&self, table: &Table<S>) -> LookupStep {
        let first = if self.blocks > 0 { self.block } else { table.layout.group::<S>(self.hash, self.group) };
        LookupStep::Read(ReadTarget::Entries { first })
    }

    fn pair(&mut self, entry: &Entry) -> LookupStep {
        self.checksum = entry.checksum;
        LookupStep::Read(ReadTarget::Pair { granule: entry.granule, len_bytes: entry.len_bytes })
    }
}

/// Returns the word at `at`; 0 if the bytes end before it.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}
