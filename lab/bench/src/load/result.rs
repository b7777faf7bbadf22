//! Results of a run, complete or interrupted.

use super::target::TargetError;
use crate::measure::{LatencyRecorder, LatencySummary};
use serde::{Deserialize, Serialize};

/// Error of a run that ended because a connection was lost.
#[derive(Debug, thiserror::Error)]
#[error("the run of the load failed")]
pub struct LoadError {
    /// Error of the connection.
    #[source]
    pub error: TargetError,
    /// Results of the run until the error.
    pub so_far: Box<LoadResult>,
}

/// Results of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Operations completed in the recorded period; a read-modify-write counts once.
    pub ops: u64,
    /// Length of the recorded period.
    pub elapsed_ns: u64,
    /// Latencies of operations, from the submission or the scheduled time to the poll that returned the outcome.
    pub latency: LatencySummary,
    /// All latencies in nanoseconds, with their counts.
    pub latencies: Vec<(u64, u64)>,
    /// Scheduled operations that never began; their latencies are counted to the end of the run.
    pub unsent: u64,
    /// Number of checked values, over the complete run.
    pub verified: u64,
    /// Reads without a result where a record must exist, over the complete run.
    pub absent: u64,
    /// Requests that the service refused, over the complete run.
    pub refused: u64,
    /// Requests with unknown outcome, over the complete run.
    pub unknown: u64,
    /// Wrong values, over the complete run.
    pub mismatched: u64,
    /// Descriptions of the first few wrong values.
    pub mismatches: Vec<String>,
}

impl LoadResult {
    /// Adds the results of another client of the same period.
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

    /// Returns operations a second in the recorded period.
    pub fn ops_per_second(&self) -> f64 {
        self.ops as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Returns all detected faults, one sentence each.
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
