//! The partition: its data, and the lookup, placement and removal of items.

use super::arena::{Arena, GRANULE_BYTES, Granule};
use super::bucket::{Bucket, SLOTS};
use super::clock::Clock;
use super::config::{Config, ConfigError};
use super::item::{self, Header};
use super::prefixes::Prefixes;
use super::region::{Region, prefetch, prefetch_value};
use super::stats::Stats;
use super::wall::WallClock;
use crate::key::{Key, KeyError, Router};

/// One partition of the store, owned by one thread: every operation takes `&mut self` and no lock.
///
/// All memory is mapped when the partition is created. No operation calls the system's allocator, unless prefixes of
/// keys are counted. Times are milliseconds of the caller's clock, which must not run backwards and must not be set:
/// see [`super::WallClock`].
pub struct Partition {
    pub(super) index: Region<Bucket>,
    pub(super) arena: Arena,
    pub(super) stats: Stats,
    pub(crate) prefixes: Prefixes,
    /// Version of the next stored item. Starts at the time of creation, so that a version from before a restart never
    /// matches afterwards.
    pub(super) next_cas: u64,
    /// Items with a lower version were flushed.
    pub(super) flushed_before_cas: u64,
    /// Time of the next flush; `u64::MAX`: none.
    pub(super) flush_at_ms: u64,
    wall: WallClock,
    clock: Option<Clock>,
    /// Maximum memory of the items: the complete arena, or less.
    pub(super) items_max_bytes: usize,
    /// Next bucket to sweep, and number of buckets that may still contain flushed items.
    pub(super) sweep_bucket: u32,
    pub(super) flushed_buckets_left: u32,
    /// Upper bound of the length of all values stored so far.
    pub(super) longest_value_bytes: usize,
    router: Router,
    config: Config,
}

/// Location of a live item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) bucket: u32,
    pub(super) slot: usize,
    pub(super) at: Granule,
    pub(super) header: Header,
}

impl Partition {
    /// Creates an empty partition. `now_ms` determines the first version (see [`super::Item::cas`]), so it should be
    /// the Unix time.
    ///
    /// # Errors
    /// [`ConfigError`] if the limits contradict each other or mapping the memory fails.
    pub fn new(config: Config, now_ms: u64) -> Result<Self, ConfigError> {
        let layout = config.layout()?;
        let map_error = |source| ConfigError::Map { bytes: config.limit_bytes, source };
        let index = Region::map(layout.buckets as usize).map_err(map_error)?;
        let arena = Arena::new(layout.granules).map_err(map_error)?;
        let reserved_bytes = index.mapped_bytes() + arena.mapped_bytes() + size_of::<Partition>();
        assert!(reserved_bytes <= config.limit_bytes, "the layout keeps the limit");
        let stats = Stats {
            reserved_bytes: reserved_bytes as u64,
            limit_bytes: config.limit_bytes as u64,
            slots: (index.len() * SLOTS) as u64,
            ..Stats::default()
        };
        Ok(Partition {
            index,
            arena,
            stats,
            prefixes: Prefixes::default(),
            next_cas: (now_ms << 20).max(1),
            flushed_before_cas: 0,
            flush_at_ms: u64::MAX,
            wall: WallClock::default(),
            clock: None,
            items_max_bytes: usize::MAX,
            sweep_bucket: 0,
            flushed_buckets_left: 0,
            longest_value_bytes: 0,
            router: config.router(),
            config,
        })
    }

    /// Returns the configuration of this partition.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the router that all partitions and clients of this store share.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Validates and hashes a key for this store.
    ///
    /// # Errors
    /// [`KeyError`] for a key of invalid length.
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, KeyError> {
        self.router.key(bytes)
    }

    /// Returns whether `key` belongs to this partition. The operations do not check this: their callers route.
    #[inline]
    pub fn owns(&self, key: &Key<'_>) -> bool {
        self.config.partitions == 1 || self.router.owner(key) == self.config.partition
    }

    /// Sets a clock by which items that are live at the time passed to an operation are checked again. A thread may be
    /// stopped between reading the time and executing the command.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    /// Returns whether a time has been reached.
    #[inline]
    pub(super) fn is_reached(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms <= now_ms || self.clock.is_some_and(|clock| at_ms <= clock.now_ms())
    }

    /// Returns the wall clock as last set; until then the partition's clock shows Unix time.
    pub fn wall(&self) -> WallClock {
        self.wall
    }

    /// Sets the current time of the wall clock. Expiration times given as Unix times are converted by it when they
    /// arrive.
    pub fn set_wall(&mut self, unix_ms: u64, now_ms: u64) {
        self.wall = WallClock::new(unix_ms, now_ms);
    }

    /// Returns the current counters and sizes.
    pub fn stats(&self) -> Stats {
        Stats { item_bytes: self.arena.used_bytes() as u64, ..self.stats }
    }

    /// Resets the counters to zero; sizes are unchanged.
    pub fn reset_stats(&mut self) {
        self.stats = self.stats.reset();
        self.prefixes.clear();
    }

    /// Prefetches the bucket of `key`: the first of two hints that hide memory latency in a batch of lookups.
    #[inline]
    pub fn prefetch_bucket(&self, key: &Key<'_>) {
        prefetch_value(&self.index[self.bucket_of(key) as usize]);
    }

    /// Prefetches the item that probably belongs to `key`: the second hint, some lookups after the first.
    #[inline]
    pub fn prefetch_item(&self, key: &Key<'_>) {
        let bucket = &self.index[self.bucket_of(key) as usize];
        let matches = bucket.matches(key.tag());
        if matches != 0 {
            let start = bucket.item(matches.trailing_zeros() as usize) as usize * GRANULE_BYTES;
            prefetch(self.arena.bytes(), start);
            prefetch(self.arena.bytes(), start + 64);
        }
    }

    #[inline]
    fn bucket_of(&self, key: &Key<'_>) -> u32 {
        key.bucket_of(self.index.len() as u32)
    }

    /// Finds the item under `key`, expired or not.
    #[inline]
    fn find_any(&self, key: &Key<'_>) -> Option<Found> {
        let number = self.bucket_of(key);
        let bucket = &self.index[number as usize];
        let mut matches = bucket.matches(key.tag());
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize;
            let at = bucket.item(slot);
            let header = Header::read(&self.arena, at);
            if self.arena.bytes()[item::key(&self.arena, at, &header)] == *key.bytes() {
                return Some(Found { bucket: number, slot, at, header });
            }
            matches &= matches - 1;
        }
        None
    }

    /// Finds the live item under `key`; reclaims it if it has expired. Always inlined: as a separate function it
    /// returns its result through memory, which costs four percent of a memcached client's `get`.
    #[inline(always)]
    pub(super) fn find(&mut self, key: &Key<'_>, now_ms: u64) -> Option<Found> {
        if now_ms >= self.flush_at_ms {
            self.flush_now();
        }
        let found = self.find_any(key)?;
        if self.is_unreachable(&found.header, now_ms) {
            self.reclaim(&found);
            return None;
        }
        Some(found)
    }

    #[inline]
    pub(super) fn is_unreachable(&self, header: &Header, now_ms: u64) -> bool {
        (header.expires_ms != 0 && self.is_reached(header.expires_ms, now_ms))
            || header.cas < self.flushed_before_cas
    }

    /// Removes an expired or flushed item.
    pub(super) fn reclaim(&mut self, found: &Found) {
        self.remove(found.bucket, found.slot);
        self.stats.expired += 1;
    }

    /// Empties a slot and frees its item's memory.
    pub(super) fn remove(&mut self, bucket: u32, slot: usize) {
        let bucket = &mut self.index[bucket as usize];
        let at = bucket.item(slot);
        debug_assert_ne!(at, 0, "an empty slot is removed");
        bucket.clear(slot);
        self.arena.free(at);
        self.stats.items -= 1;
    }

    /// Returns a slot for a new key: an empty one, or that of an evicted item.
    pub(super) fn make_slot(&mut self, key: &Key<'_>, now_ms: u64) -> Option<(u32, usize)> {
        let number = self.bucket_of(key);
        if let Some(slot) = self.index[number as usize].empty_slot() {
            return Some((number, slot));
        }
        self.reclaim_unreachable_in(number, now_ms);
        let bucket = &self.index[number as usize];
        if let Some(slot) = bucket.empty_slot() {
            return Some((number, slot));
        }
        if !self.config.evict {
            return None;
        }
        let slot = bucket.least_recent();
        self.remove(number, slot);
        self.stats.evictions_bucket_full += 1;
        Some((number, slot))
    }

    #[inline]
    pub(super) fn take_cas(&mut self) -> u64 {
        let cas = self.next_cas;
        self.next_cas += 1;
        cas
    }
}

/// Converts a time to seconds, as used for the access time of items.
#[inline]
pub(super) fn seconds(now_ms: u64) -> u32 {
    (now_ms / 1000) as u32
}
