//! What one measurement gave.

use crate::measure::LatencySummary;
use farcall_io::{Counts, PollCounts};

/// Figures of one measurement; counts are those of the whole run, warm-up included.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Requests over in a second.
    pub per_second: f64,
    /// From submitting a request until it is told of.
    pub latency: LatencySummary,
    /// Processor time of this process, over the requests over in it.
    pub cpu_us_per_request: f64,
    /// What went through the sessions.
    pub counts: Counts,
    /// What those did that looked for completions.
    pub polls: PollCounts,
    /// Context switches of the threads that only look for completions.
    pub switches: u64,
    /// Bytes in flight after each post, summed, and the posts.
    pub in_flight: (u64, u64),
}

impl Sample {
    fn requests(&self) -> f64 {
        (self.counts.reads + self.counts.writes) as f64
    }

    /// Completion time, in µs.
    #[must_use]
    pub fn p50_us(&self) -> f64 {
        self.latency.p50_ns as f64 / 1e3
    }

    /// Completion time of the slowest hundredth, in µs.
    #[must_use]
    pub fn p99_us(&self) -> f64 {
        self.latency.p99_ns as f64 / 1e3
    }

    /// Work requests for each request.
    #[must_use]
    pub fn work_per_request(&self) -> f64 {
        (self.counts.read_work + self.counts.write_work) as f64 / self.requests()
    }

    /// Of the requests so many went with another one's work request.
    #[must_use]
    pub fn merged_per_request(&self) -> f64 {
        self.counts.merged as f64 / self.requests()
    }

    /// Of the work requests so many went behind another one's doorbell, for each request.
    #[must_use]
    pub fn chained_per_request(&self) -> f64 {
        self.counts.chained as f64 / self.requests()
    }

    /// Doorbells for each request.
    #[must_use]
    pub fn doorbells_per_request(&self) -> f64 {
        self.counts.doorbells as f64 / self.requests()
    }

    /// Looks for completions, for each request.
    #[must_use]
    pub fn polls_per_request(&self) -> f64 {
        self.polls.polls as f64 / self.requests()
    }

    /// How often somebody asked for an event, to sleep, for each request.
    #[must_use]
    pub fn sleeps_per_request(&self) -> f64 {
        self.polls.sleeps as f64 / self.requests()
    }

    /// Context switches of the threads that look for completions, for each request.
    #[must_use]
    pub fn switches_per_request(&self) -> f64 {
        self.switches as f64 / self.requests()
    }

    /// KiB in flight, on average over all posts.
    #[must_use]
    pub fn in_flight_kib(&self) -> f64 {
        let (sum_bytes, posts) = self.in_flight;
        sum_bytes as f64 / posts as f64 / 1024.0
    }

    /// Thousand requests a second.
    #[must_use]
    pub fn kiops(&self) -> f64 {
        self.per_second / 1e3
    }
}
