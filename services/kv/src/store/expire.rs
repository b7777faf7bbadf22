//! Expiration: the bounded sweep that reclaims expired items, and flushes.

use super::item::Header;
use super::partition::{Found, Partition};

impl Partition {
    /// Checks the next `buckets_max` buckets and reclaims expired items there. Also evicts items above a lowered
    /// memory limit. Returns the number of reclaimed items.
    ///
    /// Expired items are never served, swept or not: the sweep only frees their memory early. A bucket without an
    /// expired item costs one load, so a server sweeps a few hundred whenever it is idle.
    pub fn sweep(&mut self, now_ms: u64, buckets_max: u32) -> u32 {
        if now_ms >= self.flush_at_ms {
            self.flush_now();
        }
        self.shrink_to_limit(now_ms);
        let buckets = self.index.len() as u32;
        let mut reclaimed = 0;
        for _ in 0..buckets_max.min(buckets) {
            let number = self.sweep_bucket;
            self.sweep_bucket = if number + 1 == buckets { 0 } else { number + 1 };
            let flushed = self.flushed_buckets_left > 0;
            self.flushed_buckets_left = self.flushed_buckets_left.saturating_sub(1);
            if flushed || self.index[number as usize].may_have_expired(now_ms) {
                reclaimed += self.reclaim_unreachable_in(number, now_ms);
            }
        }
        reclaimed
    }

    /// Makes every item stored before `at_ms` unreachable at `at_ms` (0 or a past time: at once).
    ///
    /// Takes constant time; the sweep and the eviction hand free the memory. A later call replaces an earlier one that
    /// is not due yet.
    pub fn flush_all(&mut self, at_ms: u64, now_ms: u64) {
        self.stats.flushes += 1;
        // An earlier flush that has become due must not be replaced by the new one.
        if now_ms >= self.flush_at_ms {
            self.flush_now();
        }
        self.flush_at_ms = at_ms;
        if now_ms >= at_ms {
            self.flush_now();
        }
    }

    pub(super) fn flush_now(&mut self) {
        self.flush_at_ms = u64::MAX;
        self.flushed_before_cas = self.next_cas;
        self.flushed_buckets_left = self.index.len() as u32;
    }

    /// Reclaims the expired and flushed items of one bucket and rebuilds its expiration hint.
    pub(super) fn reclaim_unreachable_in(&mut self, number: u32, now_ms: u64) -> u32 {
        let mut reclaimed = 0;
        self.index[number as usize].clear_expiry();
        for (slot, at) in self.index[number as usize].occupied() {
            let header = Header::read(&self.arena, at);
            if self.is_unreachable(&header, now_ms) {
                self.reclaim(&Found { bucket: number, slot, at, header });
                reclaimed += 1;
            } else {
                self.index[number as usize].note_expiry(header.expires_ms);
            }
        }
        reclaimed
    }
}
