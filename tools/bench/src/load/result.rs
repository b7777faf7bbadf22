//! What a run found, or why it broke off.

use super::target::TargetError;
use crate::measure::LatencySummary;

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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadResult {
    /// Operations completed in the recorded stretch; a read-modify-write is one.
    pub ops: u64,
    /// Length of the recorded stretch.
    pub elapsed_ns: u64,
    /// Latencies of operations, from submission to the poll that found them ended.
    pub latency: LatencySummary,
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
        count(self.absent, "reads found no record although one was stored");
        count(self.refused, "requests were refused");
        count(self.unknown, "requests ended with their outcome unknown");
        count(self.mismatched, "values read were wrong");
        count(u64::from(self.ops == 0), "operations: none completed");
        problems.extend(self.mismatches.iter().cloned());
        problems
    }
}
