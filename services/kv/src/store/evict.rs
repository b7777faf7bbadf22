//! Eviction: the hand that walks over the items and selects the ones to evict.

use super::arena::{GRANULE_BYTES, Granule};
use super::item::{Header, state};
use super::partition::Partition;

/// Maximum number of recently used items that one allocation spares. Afterwards the hand evicts every item.
const SPARED_MAX: u32 = 32;

/// Maximum number of items that one sweep evicts, so that it does not take longer than other sweeps.
const EVICTED_PER_SWEEP_MAX: u32 = 1024;

/// Number of buckets checked for expired items before a store without eviction refuses a write.
const SWEEP_BEFORE_REFUSAL: u32 = 4096;

impl Partition {
    /// Returns a block of `granules`, after evicting as many items as necessary; `pinned` (0: none) is never evicted.
    ///
    /// Returns `None` only if eviction is disabled: the configuration guarantees that the arena, without the pinned
    /// item, has room for the largest item on one side of it.
    pub(super) fn take_block(&mut self, granules: u32, pinned: Granule, now_ms: u64) -> Option<Granule> {
        let mut spared = 0;
        let wanted_bytes = granules as usize * GRANULE_BYTES;
        // Items above a lowered limit are evicted gradually by sweeps; here the memory must merely not grow.
        let items_max_bytes = self.items_max_bytes.max(self.arena.used_bytes());
        loop {
            if self.arena.used_bytes() + wanted_bytes <= items_max_bytes
                && let Some(at) = self.arena.allocate(granules)
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

    /// Limits the memory to less than the mapped amount, or restores it; `limit_bytes` has the same meaning as
    /// [`super::Config::limit_bytes`]. Sweeps evict the excess. Returns false and changes nothing if the limit is
    /// above the mapped amount or too small for the largest value, or without eviction.
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

    /// Evicts some of the items above a lowered limit.
    pub(super) fn shrink_to_limit(&mut self, now_ms: u64) {
        let mut spared = 0;
        for _ in 0..EVICTED_PER_SWEEP_MAX {
            if self.arena.used_bytes() <= self.items_max_bytes {
                return;
            }
            self.evict_next(0, now_ms, &mut spared);
        }
    }

    /// Advances the hand to the next item that may be evicted, and removes it.
    fn evict_next(&mut self, pinned: Granule, now_ms: u64, spared: &mut u32) {
        loop {
            let block = self.arena.advance_hand();
            if block.free || block.at == pinned {
                continue;
            }
            let header = Header::read(&self.arena, block.at);
            let dead = self.is_unreachable(&header, now_ms);
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
