//! Latency histograms and their summaries.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency told apart; longer ones are recorded as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Relative resolution of a recorded value: three significant digits, so 0.1 %.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The shares of which [`LatencySummary::quantiles_ns`] tells the latencies: those of a distribution's plot.
pub const QUANTILES: [f64; 11] = [0.01, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// Records latencies into a high-dynamic-range histogram of fixed size: recording allocates nothing.
#[derive(Debug, Clone)]
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
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

    /// The figures people compare.
    #[must_use]
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
    /// How many were recorded.
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
    /// As many as [`QUANTILES`], in their order.
    pub quantiles_ns: [u64; QUANTILES.len()],
}

#[cfg(test)]
mod tests {
    use super::*;

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
