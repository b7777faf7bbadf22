//! Periodic maintenance of a partition by its server thread: reclaims expired items, reads the wall clock, publishes
//! counters.

use std::time::{Duration, Instant};

use farcall_drive::LogThrottle;
use farcall_stats::Block;

use crate::store::{Partition, Stats, StoreCounters, unix_ms};

/// Interval between two sweeps under load.
const SWEEP_PERIOD: Duration = Duration::from_millis(10);
/// Number of buckets per sweep: one load each.
const SWEEP_BUCKETS: u32 = 512;
/// Minimum interval between two updates of the counters for `farcall stats PID`, which is read by users.
const PUBLISH_PERIOD: Duration = Duration::from_millis(100);

/// Maintenance state of one partition.
pub(super) struct Maintenance {
    counters: Block<StoreCounters>,
    sweep_due: Instant,
    publish_due: Instant,
    store_full_log: StoreFullLog,
}

/// Counters at the last log message about a full store.
#[derive(Default)]
struct StoreFullLog {
    evicted: u64,
    refused: u64,
    evictions: LogThrottle,
    refusals: LogThrottle,
}

impl StoreFullLog {
    /// Logs, at most once a minute, that items were evicted or writes refused since the last call.
    fn update(&mut self, number: u32, stats: &Stats) {
        let limit_bytes = stats.limit_bytes;
        if stats.evictions() > self.evicted && self.evictions.count().is_some() {
            let evictions = stats.evictions();
            tracing::info!(
                partition = number,
                evictions,
                limit_bytes,
                "evicts items: its memory or a bucket is full"
            );
        }
        if stats.out_of_memory > self.refused && self.refusals.count().is_some() {
            let refused = stats.out_of_memory;
            tracing::warn!(partition = number, refused, limit_bytes, "refuses writes: its memory is full");
        }
        (self.evicted, self.refused) = (stats.evictions(), stats.out_of_memory);
    }
}

impl Maintenance {
    /// Creates the state for a partition.
    pub(super) fn new(partition: &Partition) -> Self {
        let counters = Block::new(&format!("kv partition {}", partition.config().partition), 0);
        let now = Instant::now();
        Self { counters, sweep_due: now, publish_due: now, store_full_log: StoreFullLog::default() }
    }

    /// Does the work that is due. `now_ms` is called only then.
    pub(super) fn run(&mut self, partition: &mut Partition, now_ms: impl FnOnce() -> u64) {
        let now = Instant::now();
        if now < self.sweep_due {
            return;
        }
        self.sweep_due = now + SWEEP_PERIOD;
        let now_ms = now_ms();
        partition.set_wall(unix_ms(), now_ms);
        partition.sweep(now_ms, SWEEP_BUCKETS);
        if now >= self.publish_due {
            self.publish_due = now + PUBLISH_PERIOD;
            self.publish(partition);
            self.store_full_log.update(partition.config().partition, &partition.stats());
        }
    }

    /// Publishes the counters. Also called before a thread sleeps, because the sleep may be long.
    pub(super) fn publish(&self, partition: &Partition) {
        self.counters.publish(&partition.stats());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Config;

    #[test]
    fn what_is_published_can_be_read_by_pid_and_may_shrink() {
        let config = Config { partition: 4711, partitions: 4712, ..Config::default() };
        let mut partition = Partition::new(config, 1).unwrap();
        let mut maintenance = Maintenance::new(&partition);
        for items in [1, 0] {
            let key = partition.key(b"key").unwrap();
            match items {
                1 => drop(partition.set(&key, b"value", 1).unwrap()),
                _ => drop(partition.delete(&key, None, 1)),
            }
            (maintenance.sweep_due, maintenance.publish_due) = (Instant::now(), Instant::now());
            maintenance.run(&mut partition, || 1);
            maintenance.run(&mut partition, || panic!("too early"));
            let report = farcall_stats::read_pid(std::process::id()).unwrap();
            let block = report.blocks.into_iter().find(|block| block.label == "kv partition 4711").unwrap();
            let value = |name: &str| block.counters.iter().find(|(found, _)| found == name).unwrap().1;
            assert_eq!((value("items"), value("items_total")), (items, 1));
        }
    }
}
