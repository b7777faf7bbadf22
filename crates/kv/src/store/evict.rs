//! Room in memory: the hand that walks over the items and decides which give way.

use super::arena::Granule;
use super::item::{Header, state};
use super::partition::Partition;

/// Recently used items that one allocation spares. Past it the hand takes every item it meets.
const SPARED_MAX: u32 = 32;

/// Buckets looked at for expired items before a store without eviction refuses.
const SWEEP_BEFORE_REFUSAL: u32 = 4096;

impl Partition {
    /// A block of `granules`, after evicting as much as it takes; `pinned` (0: none) is never evicted.
    ///
    /// None only when eviction is off: the configuration makes sure that the arena, without the pinned item,
    /// has room for the largest item on one side of it.
    pub(super) fn take_block(&mut self, granules: u32, pinned: Granule, now_ms: u64) -> Option<Granule> {
        let mut spared = 0;
        loop {
            if let Some(at) = self.arena.take(granules) {
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
                false => self.stats.evictions.memory_full += 1,
            }
            return;
        }
    }
}
