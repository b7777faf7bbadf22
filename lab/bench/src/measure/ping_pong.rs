//! One request, one reply, over and over: the loop under every latency figure.

use super::latency::{LatencyRecorder, LatencySummary};
use farcall_verbs::{Clock, MonotonicClock};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Round trips over a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Latencies of single round trips.
    pub latency: LatencySummary,
    /// Round trips a second, one after the other.
    pub per_second: f64,
    /// How many were made.
    pub count: u64,
}

/// Makes round trips for `warm_up`, unrecorded, then for `duration`, recorded. `round_trip` gets a number that grows
/// by one each time, from 1. One clock reading lies between two round trips, and its cost is part of the figure.
///
/// # Errors
/// The first error of `round_trip`.
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

/// As [`ping_pong`]: all recorded latencies, and the length of the recorded stretch in nanoseconds.
///
/// # Errors
/// As [`ping_pong`].
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
