//! Delays between attempts: exponential back-off with full jitter.

use std::time::Duration;

use crate::SplitMix64;

/// Delays drawn uniformly from `[0, min(cap, base · 2^attempt)]` ("full jitter"), so that clients that lost their
/// server at the same time do not all reconnect at the same time. The seed determines the sequence of delays.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    attempt: u32,
    rng: SplitMix64,
}

impl Backoff {
    /// Creates a back-off whose maximum delay is `base` at first and doubles up to `cap`.
    pub const fn new(base: Duration, cap: Duration, seed: u64) -> Self {
        Self { base, cap, attempt: 0, rng: SplitMix64::new(seed) }
    }

    /// Returns the next delay.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling();
        self.attempt = self.attempt.saturating_add(1);
        let ceiling_ns = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.rng.below(ceiling_ns.saturating_add(1)))
    }

    /// Returns the maximum of the next delay.
    fn ceiling(&self) -> Duration {
        let factor = 1u32.checked_shl(self.attempt).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// Restarts with short delays. Call this after a success.
    pub const fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_delays_by_a_doubling_ceiling_and_repeats_by_seed() {
        let new = || Backoff::new(Duration::from_millis(1), Duration::from_millis(100), 7);
        let (mut a, mut b) = (new(), new());
        for attempt in 0..70u32 {
            let ceiling = Duration::from_millis(1 << attempt.min(7)).min(Duration::from_millis(100));
            assert_eq!(a.ceiling(), ceiling);
            let delay = a.next_delay();
            assert!(delay <= ceiling);
            assert_eq!(delay, b.next_delay());
        }
        a.reset();
        assert_eq!(a.ceiling(), Duration::from_millis(1));
    }
}
