//! The counters that a server thread publishes for `farcall stats PID`.

use farcall_kv::store::Stats;
use farcall_stats::{Block, Counter};
use std::time::{Duration, Instant};

/// Published at most so often: readers are people.
const PERIOD: Duration = Duration::from_millis(100);

farcall_stats::counters! {
    /// The store's counters, in the order of [`Stats::to_array`].
    struct StoreCounters {
        /// See [`Stats::get_hits`].
        get_hits,
        /// See [`Stats::get_misses`].
        get_misses,
        /// See [`Stats::puts`].
        puts,
        /// See [`Stats::puts_not_stored`].
        puts_not_stored,
        /// See [`Stats::delete_hits`].
        delete_hits,
        /// See [`Stats::delete_misses`].
        delete_misses,
        /// See [`Stats::cas_hits`].
        cas_hits,
        /// See [`Stats::cas_misses`].
        cas_misses,
        /// See [`Stats::cas_mismatches`].
        cas_mismatches,
        /// See [`Stats::touch_hits`].
        touch_hits,
        /// See [`Stats::touch_misses`].
        touch_misses,
        /// See [`Stats::counter_hits`].
        counter_hits,
        /// See [`Stats::counter_misses`].
        counter_misses,
        /// See [`farcall_kv::store::Evictions::bucket_full`].
        evictions_bucket_full,
        /// See [`farcall_kv::store::Evictions::memory_full`].
        evictions_memory_full,
        /// See [`Stats::expired`].
        expired,
        /// See [`Stats::too_large`].
        too_large,
        /// See [`Stats::out_of_memory`].
        out_of_memory,
        /// See [`Stats::flushes`].
        flushes,
        /// See [`Stats::items`].
        items,
        /// See [`Stats::items_total`].
        items_total,
        /// See [`Stats::item_bytes`].
        item_bytes,
        /// See [`Stats::reserved_bytes`].
        reserved_bytes,
        /// See [`Stats::limit_bytes`].
        limit_bytes,
        /// See [`Stats::slots`].
        slots,
    }
}

impl StoreCounters {
    fn all(&self) -> [&Counter; Stats::FIELDS] {
        [
            &self.get_hits,
            &self.get_misses,
            &self.puts,
            &self.puts_not_stored,
            &self.delete_hits,
            &self.delete_misses,
            &self.cas_hits,
            &self.cas_misses,
            &self.cas_mismatches,
            &self.touch_hits,
            &self.touch_misses,
            &self.counter_hits,
            &self.counter_misses,
            &self.evictions_bucket_full,
            &self.evictions_memory_full,
            &self.expired,
            &self.too_large,
            &self.out_of_memory,
            &self.flushes,
            &self.items,
            &self.items_total,
            &self.item_bytes,
            &self.reserved_bytes,
            &self.limit_bytes,
            &self.slots,
        ]
    }
}

/// What one thread publishes.
pub(super) struct ThreadCounters {
    block: Block<StoreCounters>,
    due: Instant,
}

impl ThreadCounters {
    /// Counters of a partition's thread.
    pub(super) fn new(partition: u32) -> Self {
        Self { block: Block::new(&format!("kv partition {partition}"), 0), due: Instant::now() }
    }

    /// Publishes if it is time.
    pub(super) fn publish_if_due(&mut self, now: Instant, stats: impl FnOnce() -> Stats) {
        if now < self.due {
            return;
        }
        self.due = now + PERIOD;
        self.publish(&stats());
    }

    /// Publishes.
    pub(super) fn publish(&mut self, stats: &Stats) {
        for (counter, value) in self.block.all().into_iter().zip(stats.to_array()) {
            counter.set(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_can_be_read_by_pid_and_may_shrink() {
        let mut counters = ThreadCounters::new(4711);
        let start = Instant::now();
        for (turn, items) in [7, 3].into_iter().enumerate() {
            let stats = Stats { items, get_hits: 5, slots: 9, ..Stats::default() };
            counters.publish_if_due(start + (turn as u32 + 1) * PERIOD, || stats);
            let report = farcall_stats::read_pid(std::process::id()).unwrap();
            let block = report.blocks.into_iter().find(|block| block.label == "kv partition 4711").unwrap();
            let value = |name: &str| block.counters.iter().find(|(found, _)| found == name).unwrap().1;
            assert_eq!((value("items"), value("get_hits"), value("slots")), (items, 5, 9));
        }
    }

    #[test]
    fn nothing_is_published_before_it_is_due() {
        let mut counters = ThreadCounters::new(0);
        let start = Instant::now() + PERIOD;
        counters.publish_if_due(start, Stats::default);
        counters.publish_if_due(start + PERIOD / 2, || panic!("too early"));
    }
}
