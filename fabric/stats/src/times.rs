//! Latency histogram in shared memory.

use std::time::Duration;

use crate::{Counter, Counters};

/// Upper limit of the first bucket in nanoseconds; the limit of each later bucket is twice that of its predecessor.
const FIRST_NS: u64 = 128;
const BUCKETS: usize = 25;

/// A histogram with one writer: buckets with limits at powers of two from 128 ns to 2.1 s, one for longer times, and
/// the sum.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Times {
    buckets: [Counter; BUCKETS],
    more: Counter,
    sum_ns: Counter,
}

impl Times {
    /// Counts one time. Costs two loads and two stores.
    #[inline]
    pub fn count(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        let bucket = ns.div_ceil(FIRST_NS).max(1).next_power_of_two().trailing_zeros() as usize;
        self.buckets.get(bucket).unwrap_or(&self.more).increment();
        self.sum_ns.add(ns);
    }
}

/// `le_128`, `le_256`, … `le_2147483648`, `le_inf`, `sum_ns`; limits in nanoseconds.
const NAMES: [&str; BUCKETS + 2] = [
    "le_128",
    "le_256",
    "le_512",
    "le_1024",
    "le_2048",
    "le_4096",
    "le_8192",
    "le_16384",
    "le_32768",
    "le_65536",
    "le_131072",
    "le_262144",
    "le_524288",
    "le_1048576",
    "le_2097152",
    "le_4194304",
    "le_8388608",
    "le_16777216",
    "le_33554432",
    "le_67108864",
    "le_134217728",
    "le_268435456",
    "le_536870912",
    "le_1073741824",
    "le_2147483648",
    "le_inf",
    "sum_ns",
];

// SAFETY: the struct is `repr(C)` and has only `Counter`s, one for each name.
unsafe impl Counters for Times {
    const NAMES: &'static [&'static str] = &NAMES;
}

/// A histogram that was read from statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Upper limit of each bucket in nanoseconds, ascending, and its count; `None` means no limit.
    pub buckets: Vec<(Option<u64>, u64)>,
    /// Sum of all times in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// Returns the histogram of a block's counters; `None` if they are not a histogram.
    pub fn of(counters: &[(String, u64)]) -> Option<Self> {
        let ((last, sum_ns), buckets) = counters.split_last()?;
        let limit = |name: &str| match name.strip_prefix("le_")? {
            "inf" => Some(None),
            ns => ns.parse().ok().map(Some),
        };
        let buckets =
            buckets.iter().map(|(name, count)| Some((limit(name)?, *count))).collect::<Option<Vec<_>>>()?;
        (last == "sum_ns" && !buckets.is_empty()).then_some(Self { buckets, sum_ns: *sum_ns })
    }

    /// Returns the number of counted times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.wrapping_add(*count))
    }

    /// Returns the upper limit in nanoseconds of the bucket with the quantile `part`, from 0 to 1; `None` if it is in
    /// the bucket without limit, or if nothing was counted.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0_u64;
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen = seen.wrapping_add(*count);
            seen >= rank
        })?;
        bucket.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(times: &Times) -> Histogram {
        let values = times.buckets.iter().chain([&times.more, &times.sum_ns]).map(Counter::get);
        let counters: Vec<_> = NAMES.iter().map(|name| (*name).to_owned()).zip(values).collect();
        Histogram::of(&counters).unwrap()
    }

    #[test]
    fn limits_are_those_of_the_names_and_belong_to_their_bucket() {
        for (at, name) in NAMES[..BUCKETS].iter().enumerate() {
            let limit = FIRST_NS << at;
            assert_eq!(*name, format!("le_{limit}"));
            let times = Times::default();
            times.count(Duration::from_nanos(limit));
            assert_eq!(read(&times).buckets[at], (Some(limit), 1));
            times.count(Duration::from_nanos(limit + 1));
            assert_eq!(read(&times).buckets[at + 1].1, 1);
        }
        assert_eq!(size_of::<Times>(), NAMES.len() * size_of::<Counter>());
    }

    #[test]
    fn quantiles_are_limits_that_so_many_did_not_exceed() {
        let times = Times::default();
        assert_eq!((read(&times).count(), read(&times).quantile_ns(0.5)), (0, None));
        for ns in [0, 100, 200, 1_000_000] {
            times.count(Duration::from_nanos(ns));
        }
        let seen = read(&times);
        assert_eq!((seen.count(), seen.sum_ns), (4, 1_000_300));
        let quantiles = [0.5, 0.75, 0.99].map(|part| seen.quantile_ns(part));
        assert_eq!(quantiles, [Some(128), Some(256), Some(1_048_576)]);
        times.count(Duration::from_secs(3600));
        assert_eq!(read(&times).quantile_ns(1.0), None, "longer than all limits");
    }

    #[test]
    fn other_counters_are_no_histogram() {
        let counters = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1)).collect::<Vec<_>>();
        for names in [&[][..], &["sum_ns"], &["calls", "sum_ns"], &["le_x", "sum_ns"], &["le_128", "more"]] {
            assert_eq!(Histogram::of(&counters(names)), None, "{names:?}");
        }
    }
}
