//! The loop of one request and one reply at a time, on which every latency figure is based.

use super::latency::{LatencyRecorder, LatencySummary};
use farcall_verbs::{Clock, MonotonicClock};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Round trips during a period.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Latencies of single round trips.
    pub latency: LatencySummary,
    /// Sequential round trips a second.
    pub per_second: f64,
    /// Number of round trips.
    pub count: u64,
}

/// Executes round trips for `warm_up` without recording, then for `duration` with recording. `round_trip` receives the
/// number of the round trip, counted from 1. The clock is read once between two round trips; the cost of that is part
/// of the figure.
///
/// # Errors
/// Returns the first error of `round_trip`.
pub fn ping_pong<E>(
    warm_up: Duration,
    duration: Duration,
    round_trip: impl FnMut(u64) -> Result<(), E>,
) -> Result<RoundTrips, E> {
    let (latencies, elapsed_ns) = record_ping_pong(warm_up, duration, round_trip)?;
    let latency = latencies.summary();
    let per_second = latency.count as f64 * 1e9 / elapsed_ns.max(1) as f64;
    Ok(RoundTrips { latency, per_second, count: latency.count })
}

/// Like [`ping_pong`], but returns all recorded latencies and the length of the recorded period in nanoseconds.
///
/// # Errors
/// Those of [`ping_pong`].
pub(crate) fn record_ping_pong<E>(
    warm_up: Duration,
    duration: Duration,
    mut round_trip: impl FnMut(u64) -> Result<(), E>,
) -> Result<(LatencyRecorder, u64), E> {
    let clock = MonotonicClock::new();
    let mut number = 0;
    let warm_until = clock.now() + warm_up;
    loop {
        number += 1;
        round_trip(number)?;
        if clock.now() >= warm_until {
            break;
        }
    }
    let mut latencies = LatencyRecorder::default();
    let start = clock.now();
    let end = start + duration;
    let mut before = start;
    while before < end {
        number += 1;
        round_trip(number)?;
        let after = clock.now();
        latencies.record_ns(after.0.saturating_sub(before.0));
        before = after;
    }
    Ok((latencies, before.0 - start.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_by_one_and_the_count_excludes_the_warm_up() {
        let mut last = 0;
        let trips = ping_pong(Duration::from_millis(1), Duration::from_millis(2), |number| {
            assert_eq!(number, last + 1);
            last = number;
            Ok::<_, ()>(())
        })
        .unwrap();
        assert!(trips.count >= 1 && trips.count < last);
        assert!(trips.per_second > 0.0);
    }

    #[test]
    fn an_error_ends_it() {
        let result =
            ping_pong(
                Duration::from_secs(9),
                Duration::from_secs(9),
                |n| if n < 5 { Ok(()) } else { Err(n) },
            );
        assert_eq!(result, Err(5));
    }
}
