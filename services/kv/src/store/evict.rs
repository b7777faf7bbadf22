//! Room in memory: the hand that walks over the items and decides which give way.

use super::arena::{GRANULE_BYTES, Granule};
use super::item::{Header, state};
use super::partition::Partition;

/// Recently used items that one allocation spares. Past it the hand takes every item it meets.
const SPARED_MAX: u32 = 32;

/// Items that one sweep evicts at most, so that it takes no longer than others.
const EVICTED_PER_SWEEP_MAX: u32 = 1024;

/// Buckets looked at for expired items before a store without eviction refuses.
const SWEEP_BEFORE_REFUSAL: u32 = 4096;

impl Partition {
    /// A block of `granules`, after evicting as much as it takes; `pinned` (0: none) is never evicted.
    ///
    /// None only when eviction is off: the configuration makes sure that the arena, without the pinned item,
    /// has room for the largest item on one side of it.
    pub(super) fn take_block(&mut self, granules: u32, pinned: Granule, now_ms: u64) -> Option<Granule> {
        let mut spared = 0;
        let wanted_bytes = granules as usize * GRANULE_BYTES;
        // What is above a lowered limit goes by and by; here it only grows no further.
        let items_max_bytes = self.items_max_bytes.max(self.arena.used_bytes());
        loop {
            if self.arena.used_bytes() + wanted_bytes <= items_max_bytes
                && let Some(at) = self.arena.take(granules)
            {
                return Some(at);
            }
            if !self.config().evict {
                if self.sweep(now_ms, SWEEP_BEFORE_REFUSAL) == 0 {
                    return None;
                }
                continue;
            }
            self.evict_next(pinned, now_ms, &mut spared);
        }
    }

    /// Limits the memory to less than was mapped, or to that again; `limit_bytes` is of the same kind as
    /// [`super::Config::limit_bytes`]. Sweeps evict what is too much. Returns false, and changes nothing, if that is
    /// more than was mapped or too little for the largest value, or without eviction.
    pub fn limit_memory(&mut self, limit_bytes: usize) -> bool {
        let possible = self.can_limit_memory(limit_bytes);
        if possible {
            self.items_max_bytes = limit_bytes - self.config().fixed_bytes(self.index.len() as u32);
            self.stats.limit_bytes = limit_bytes as u64;
        }
        possible
    }

    pub(crate) fn can_limit_memory(&self, limit_bytes: usize) -> bool {
        let config = self.config();
        let least_bytes = config.fixed_bytes(self.index.len() as u32) + config.arena_min_bytes();
        config.evict && (least_bytes..=config.limit_bytes).contains(&limit_bytes)
    }

    /// Evicts some of what is above a lowered limit.
    pub(super) fn shrink_to_limit(&mut self, now_ms: u64) {
        let mut spared = 0;
        for _ in 0..EVICTED_PER_SWEEP_MAX {
            if self.arena.used_bytes() <= self.items_max_bytes {
                return;
            }
            self.evict_next(0, now_ms, &mut spared);
        }
    }

    /// Moves the hand to the next item that may go, and removes it.
    fn evict_next(&mut self, pinned: Granule, now_ms: u64, spared: &mut u32) {
        loop {
            let block = self.arena.advance_hand();
            if block.free || block.at == pinned {
                continue;
            }
            let header = Header::read(&self.arena, block.at);
            let dead = self.is_dead(&header, now_ms);
            if !dead && header.state & state::REFERENCED != 0 && *spared < SPARED_MAX {
                *spared += 1;
                Header { state: header.state & !state::REFERENCED, ..header }
                    .write(&mut self.arena, block.at);
                continue;
            }
            let slot = self.index[header.bucket as usize].slot_of(block.at).expect("every item has its slot");
            self.remove(header.bucket, slot);
            match dead {
                true => self.stats.expired += 1,
                false => self.stats.evictions_memory_full += 1,
            }
            return;
        }
    }
}
