//! What a server thread does now and then for its partition: publish counters, reclaim expired items.

use super::counters::ThreadCounters;
use farcall_kv::store::Partition;
use std::time::{Duration, Instant};

/// Between two sweeps under load.
const SWEEP_PERIOD: Duration = Duration::from_millis(10);
/// Buckets of one sweep: one load each.
const SWEEP_BUCKETS: u32 = 512;

/// The upkeep of one partition.
pub(super) struct Upkeep {
    counters: ThreadCounters,
    sweep_due: Instant,
}

impl Upkeep {
    /// For a partition.
    pub(super) fn new(partition: &Partition) -> Self {
        Self { counters: ThreadCounters::new(partition.config().partition), sweep_due: Instant::now() }
    }

    /// Does what is due.
    pub(super) fn run(&mut self, partition: &mut Partition, now_ms: u64) {
        let now = Instant::now();
        if now < self.sweep_due {
            return;
        }
        self.sweep_due = now + SWEEP_PERIOD;
        partition.sweep(now_ms, SWEEP_BUCKETS);
        self.counters.publish_if_due(now, || partition.stats());
    }

    /// Publishes what there is, before a thread sleeps: it may be long.
    pub(super) fn before_sleep(&mut self, partition: &Partition) {
        self.counters.publish(&partition.stats());
    }
}
