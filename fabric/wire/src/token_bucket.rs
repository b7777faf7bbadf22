//! A rate limit.

/// A token bucket: up to `BURST` tokens at once, and one more for each interval of `INTERVAL_NS` nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket<const BURST: u32, const INTERVAL_NS: u64> {
    left: u32,
    /// Time up to which tokens were added.
    since_ns: u64,
}

impl<const BURST: u32, const INTERVAL_NS: u64> TokenBucket<BURST, INTERVAL_NS> {
    /// Creates a full bucket. Times are nanoseconds of one monotonic clock, which the caller chooses.
    pub const fn full(now_ns: u64) -> Self {
        Self { left: BURST, since_ns: now_ns }
    }

    /// Takes a token. Returns whether one was left.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.since_ns) / INTERVAL_NS;
        if earned > 0 {
            self.left = (u64::from(self.left).saturating_add(earned)).min(BURST.into()) as u32;
            self.since_ns = now_ns;
        }
        let has_one = self.left > 0;
        self.left -= u32::from(has_one);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_a_burst_and_then_one_for_each_interval() {
        let mut bucket = TokenBucket::<64, 100>::full(0);
        assert_eq!((0..1_000).filter(|_| bucket.take(50)).count(), 64);
        assert!(!bucket.take(99) && bucket.take(100) && !bucket.take(100));
        assert_eq!((0..1_000).filter(|_| bucket.take(u64::MAX)).count(), 64);
        assert!(!bucket.take(0), "a clock that stands still adds none");
    }
}
