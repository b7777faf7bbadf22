//! One request, one reply, over and over: the loop under every latency figure.

use super::clock::TscClock;
use super::latency::{LatencyRecorder, LatencySummary};
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
    mut round_trip: impl FnMut(u64) -> Result<(), E>,
) -> Result<RoundTrips, E> {
    let clock = TscClock::calibrated();
    let mut number = 0;
    let warm_until = clock.now() + clock.ticks_in(warm_up);
    loop {
        number += 1;
        round_trip(number)?;
        if clock.now() >= warm_until {
            break;
        }
    }
    let mut latencies = LatencyRecorder::new();
    let start = clock.now();
    let end = start + clock.ticks_in(duration);
    let mut before = start;
    loop {
        number += 1;
        round_trip(number)?;
        let after = clock.now();
        latencies.record_ns(clock.ns_between(before, after));
        before = after;
        if after >= end {
            break;
        }
    }
    let count = latencies.count();
    let elapsed_ns = clock.ns_between(start, before).max(1);
    Ok(RoundTrips { latency: latencies.summary(), per_second: count as f64 * 1e9 / elapsed_ns as f64, count })
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
