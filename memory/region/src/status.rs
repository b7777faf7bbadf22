//! Status and counters of a region.

use std::time::Duration;

use farcall_memory::SpaceStatus;

/// Number of histogram buckets per power of two.
const PARTS: usize = 4;

/// Histogram of fault times, with four buckets per power of two.
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
        // The two bits after the most significant one.
        power * PARTS + ((ns >> (power - 2)) as usize & (PARTS - 1))
    }

    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[Self::bucket(ns)] += 1;
    }

    /// Returns the number of faults.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns an upper bound of the given quantile, at most a quarter too high: the fraction `share` of the faults
    /// took no longer. Zero if there was no fault.
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

    /// Returns the upper bound of a bucket.
    fn bound(bucket: usize) -> Duration {
        let ns = ((PARTS + bucket % PARTS + 1) as u128) << (bucket / PARTS - 2);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the non-empty buckets: upper bound, and number of faults.
    pub fn histogram(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (Self::bound(bucket), *count))
    }
}

/// Counters of a region. Accesses to resident pages cannot be observed and are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionCounts {
    /// Faults that threads waited for.
    pub faults: u64,
    /// Faults on pages that were read from a memory node.
    pub remote: u64,
    /// Faults on pages that were never written, resolved without a memory node.
    pub zeros: u64,
    /// Faults on evicted pages that were still staged, resolved without a memory node.
    pub staged: u64,
    /// Faults on pages that were being fetched already, by read-ahead or for another thread.
    pub on_the_way: u64,
    /// Faults by writes to pages protected for a snapshot.
    pub protected: u64,
    /// Faults that waited because there was no space for another page.
    pub waited_for_room: u64,
    /// Pages fetched without a fault: by read-ahead or by the hint that they will be needed.
    pub read_ahead: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Evicted pages whose bytes were already stored.
    pub evicted_clean: u64,
    /// Pages stored on memory nodes.
    pub stored: u64,
    /// Failed stores. The pages are retained and the stores are retried.
    pub not_stored: u64,
    /// Pages that cannot be read: an access raises SIGBUS.
    pub poisoned: u64,
}

/// Status of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionStatus {
    /// Local memory that pages take at present, in bytes; at most the limit.
    pub resident_bytes: u64,
    /// Limit of that memory in bytes.
    pub resident_limit_bytes: u64,
    /// Local memory of the page tables of the pager, in bytes.
    pub table_bytes: u64,
    /// Counters.
    pub counts: RegionCounts,
    /// Times from reading a fault until its page was present. Threads observe longer times, because the kernel must
    /// suspend and wake them.
    pub fault_times: FaultTimes,
    /// Status of the address space on the memory nodes.
    pub memory: SpaceStatus,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_quantiles_to_a_quarter() {
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
