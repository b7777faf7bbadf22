//! How a region stands, and what happened so far.

use std::time::Duration;

use farcall_memory::SpaceStatus;

/// Parts of each power of two that times are told apart by.
const PARTS: usize = 4;

/// Times of faults, to a quarter of a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultTimes {
    buckets: Vec<u64>,
}

impl Default for FaultTimes {
    fn default() -> Self {
        Self { buckets: vec![0; 64 * PARTS] }
    }
}

impl FaultTimes {
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(PARTS as u64);
        let power = ns.ilog2() as usize;
        // The two bits after the first one.
        power * PARTS + ((ns >> (power - 2)) as usize & (PARTS - 1))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[Self::bucket(ns)] += 1;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// No more than this share of the faults took longer; up to a quarter too much. Zero if there was none.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let Some(bucket) = bucket else { return Duration::ZERO };
        Self::bound(bucket)
    }

    /// No time of a bucket is longer.
    fn bound(bucket: usize) -> Duration {
        let ns = ((PARTS + bucket % PARTS + 1) as u128) << (bucket / PARTS - 2);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Upper bounds of times, and how many faults took up to that, longer than the bound before; no empty ones.
    pub fn histogram(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (Self::bound(bucket), *count))
    }
}

/// What happened in a region so far. Accesses to pages that are resident are seen by nobody, and so counted nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Faults that threads waited for.
    pub faults: u64,
    /// Of these, for pages that came from a memory node.
    pub remote: u64,
    /// For pages that were never written: no memory node was asked.
    pub zeros: u64,
    /// For pages that had been taken out and were still here: no memory node was asked.
    pub staged: u64,
    /// For pages that were on their way already: read ahead, or wanted by another thread.
    pub on_the_way: u64,
    /// For pages that a snapshot had protected.
    pub protected: u64,
    /// Faults that had to wait, because there was no room for one more page.
    pub waited_for_room: u64,
    /// Pages that came unasked: after a sequence of faults, or by the hint that they will be needed.
    pub read_ahead: u64,
    /// Pages that were taken out.
    pub evicted: u64,
    /// Of these, those whose bytes memory nodes had already.
    pub evicted_clean: u64,
    /// Pages that were stored at memory nodes.
    pub stored: u64,
    /// Pages that could not be stored; they are kept, and it is tried again.
    pub not_stored: u64,
    /// Pages that cannot be read: whoever touches one gets SIGBUS.
    pub poisoned: u64,
}

/// How a region stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionStatus {
    /// Bytes of local memory that pages take now; at most the limit.
    pub resident_bytes: u64,
    /// The limit.
    pub resident_limit_bytes: u64,
    /// Local memory that keeps track of pages, in bytes.
    pub table_bytes: u64,
    /// What happened so far.
    pub counts: RegionCounts,
    /// From when the fault was read until its page was there. What threads see is longer, by what the system takes to
    /// stop and to start them.
    pub fault_times: FaultTimes,
    /// The memory nodes.
    pub memory: SpaceStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let mut times = FaultTimes::default();
        assert_eq!(times.quantile(0.5), Duration::ZERO);
        for ns in 1..=10_000 {
            times.record(Duration::from_nanos(ns));
        }
        times.record(Duration::MAX);
        for share in [0.01, 0.5, 0.99] {
            let (found, right) = (times.quantile(share).as_nanos() as f64, 10_000.0 * share);
            assert!(found >= right && found <= right * 1.26, "{share}: {found}");
        }
        assert_eq!(times.count(), 10_001);
        assert_eq!(times.histogram().map(|(_, count)| count).sum::<u64>(), 10_001);
        assert!(times.histogram().map(|(bound, _)| bound).is_sorted());
    }
}
