//! What a run found, or why it broke off.

use super::target::TargetError;
use crate::measure::{LatencyRecorder, LatencySummary};
use serde::{Deserialize, Serialize};

/// A connection was lost, and the run with it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct LoadError {
    /// What happened.
    #[source]
    pub error: TargetError,
    /// What the run had found until then.
    pub so_far: Box<LoadResult>,
}

/// What a run found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Operations completed in the recorded stretch; a read-modify-write is one.
    pub ops: u64,
    /// Length of the recorded stretch.
    pub elapsed_ns: u64,
    /// Latencies of operations, from submission, or from the intended time, to the poll that found them ended.
    pub latency: LatencySummary,
    /// All of them in nanoseconds, with their counts.
    pub latencies: Vec<(u64, u64)>,
    /// Operations of the schedule that never began; their latencies count to the end of the run.
    pub unsent: u64,
    /// Values that were checked, over the whole run.
    pub verified: u64,
    /// Reads that found nothing where a record must be, over the whole run.
    pub absent: u64,
    /// Requests that the service refused, over the whole run.
    pub refused: u64,
    /// Requests whose outcome is unknown, over the whole run.
    pub unknown: u64,
    /// Values that were wrong, over the whole run.
    pub mismatched: u64,
    /// The first few wrong values.
    pub mismatches: Vec<String>,
}

impl LoadResult {
    /// Adds what another client found at the same time.
    pub fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        let mut all = LatencyRecorder::from(std::mem::take(&mut self.latencies));
        all.add(&other.latencies.clone().into());
        (self.latency, self.latencies) = (all.summary(), all.into());
        self.unsent += other.unsent;
        self.verified += other.verified;
        self.absent += other.absent;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.mismatched += other.mismatched;
        self.mismatches.extend(other.mismatches.iter().cloned());
    }

    /// Operations a second in the recorded stretch.
    #[must_use]
    pub fn ops_per_second(&self) -> f64 {
        self.ops as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Everything that was not as it must be, one sentence each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut count = |count: u64, what: &str| {
            if count > 0 {
                problems.push(format!("{count} {what}"));
            }
        };
        let behind = "operations of the schedule never began: the service did not keep up; \
                      lower the rate or widen the window";
        count(self.unsent, behind);
        count(self.absent, "reads found no record although one was stored");
        count(self.refused, "requests were refused");
        count(self.unknown, "requests ended with their outcome unknown");
        count(self.mismatched, "values read were wrong");
        count(u64::from(self.ops == 0), "operations: none completed");
        problems.extend(self.mismatches.iter().cloned());
        problems
    }
}
