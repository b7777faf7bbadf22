//! Results of one measurement.

use crate::measure::LatencySummary;
use farcall_io::{Counts, PollCounts};

/// Figures of one measurement; counts cover the complete run, warm-up included.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Completed requests a second.
    pub per_second: f64,
    /// Time from submitting a request until its completion is reported.
    pub latency: LatencySummary,
    /// Processor time of this process per completed request, in microseconds.
    pub cpu_us_per_request: f64,
    /// Counters of the sessions.
    pub counts: Counts,
    /// Counters of the threads that poll for completions.
    pub polls: PollCounts,
    /// Context switches of the threads that only poll for completions.
    pub switches: u64,
    /// Sum of the bytes in flight after each post, and number of posts.
    pub in_flight: (u64, u64),
}

impl Sample {
    /// Returns a count per request.
    pub fn per_request(&self, count: u64) -> f64 {
        count as f64 / (self.counts.reads + self.counts.writes) as f64
    }

    /// Returns work requests per request.
    pub fn work_per_request(&self) -> f64 {
        self.per_request(self.counts.read_work + self.counts.write_work)
    }

    /// Returns the median completion time in µs.
    pub fn p50_us(&self) -> f64 {
        self.latency.p50_ns as f64 / 1e3
    }

    /// Returns the 99th percentile of the completion time in µs.
    pub fn p99_us(&self) -> f64 {
        self.latency.p99_ns as f64 / 1e3
    }

    /// Returns the average of KiB in flight over all posts.
    pub fn in_flight_kib(&self) -> f64 {
        let (sum_bytes, posts) = self.in_flight;
        sum_bytes as f64 / posts as f64 / 1024.0
    }
}
