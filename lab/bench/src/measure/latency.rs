//! Latency histograms and their summaries.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Maximum latency that is recorded exactly; longer ones are recorded as this value.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Relative resolution of a recorded value: three significant digits, which is 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Quantiles of [`LatencySummary::quantiles_ns`], which suit the plot of a distribution.
pub const QUANTILES: [f64; 11] = [0.01, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// Records latencies in a high-dynamic-range histogram of fixed size. Recording allocates no memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", from = "Vec<(u64, u64)>")]
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
}

/// Latencies in nanoseconds, each with its count.
impl From<LatencyRecorder> for Vec<(u64, u64)> {
    fn from(recorder: LatencyRecorder) -> Self {
        let recorded = recorder.histogram.iter_recorded();
        recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for LatencyRecorder {
    fn from(counts: Vec<(u64, u64)>) -> Self {
        let mut recorder = Self::default();
        for (latency_ns, count) in counts {
            recorder.histogram.saturating_record_n(latency_ns, count);
        }
        recorder
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
            .expect("constant bounds are valid");
        Self { histogram }
    }
}

impl LatencyRecorder {
    /// Records one latency.
    #[inline]
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
    }

    /// Adds the latencies of another recorder.
    pub fn add(&mut self, other: &Self) {
        // Cannot fail: both have the same bounds.
        let added = self.histogram.add(&other.histogram);
        debug_assert!(added.is_ok());
    }

    /// Returns the number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the usual summary of the recorded latencies.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            count: self.histogram.len(),
            mean_ns: self.histogram.mean(),
            p50_ns: self.histogram.value_at_quantile(0.5),
            p99_ns: self.histogram.value_at_quantile(0.99),
            p999_ns: self.histogram.value_at_quantile(0.999),
            max_ns: self.histogram.max(),
            quantiles_ns: QUANTILES.map(|share| self.histogram.value_at_quantile(share)),
        }
    }
}

/// Percentiles of recorded latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of recorded latencies.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Quantiles, in the order of [`QUANTILES`].
    pub quantiles_ns: [u64; QUANTILES.len()],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_processes_recorded_adds_up() {
        let mut all = LatencyRecorder::default();
        for part in 0..3 {
            let mut recorder = LatencyRecorder::default();
            (1..=1000).for_each(|latency_ns| recorder.record_ns(latency_ns * 10 + part));
            let text = serde_json::to_string(&recorder).unwrap();
            all.add(&serde_json::from_str(&text).unwrap());
        }
        let summary = all.summary();
        assert_eq!(summary.count, 3000);
        assert!(summary.p50_ns.abs_diff(5000) <= 10, "{summary:?}");
    }

    #[test]
    fn percentiles_of_a_known_sequence() {
        let mut recorder = LatencyRecorder::default();
        for latency_ns in 1..=10_000 {
            recorder.record_ns(latency_ns);
        }
        let summary = recorder.summary();
        assert_eq!(summary.count, 10_000);
        recorder.record_ns(u64::MAX);
        assert_eq!(recorder.summary().count, 10_001, "an outlier saturates");
        for (found, expected) in [
            (summary.p50_ns, 5000),
            (summary.p99_ns, 9900),
            (summary.p999_ns, 9990),
            (summary.quantiles_ns[3], 1500),
            (summary.quantiles_ns[10], 9990),
            (summary.max_ns, 10_000),
        ] {
            assert!(found.abs_diff(expected) * 1000 <= expected * 2, "{found} for {expected}");
        }
    }
}
