//! Number of calls of a batch: RF-RPC, section 4.2, equation 3.

use std::time::Duration;

use farcall_link::{BatchConfig, BatchSizing};

/// Number of calls between two decisions: enough to detect a tenth of a tolerance of 5 % (one late call in 200) twice.
const CALLS_PER_DECISION: u32 = 512;

/// The current batch size, and statistics of the calls made with it.
#[derive(Debug)]
pub(crate) struct BatchSize {
    sizing: BatchSizing,
    size: u16,
    seen: u32,
    late: u32,
    /// Calls in full batches.
    in_full: u32,
}

impl BatchSize {
    pub fn new(sizing: BatchSizing) -> Self {
        let size = match sizing {
            BatchSizing::Fixed(size) => size,
            BatchSizing::Automatic { .. } => 1,
        };
        Self { sizing, size, seen: 0, late: 0, in_full: 0 }
    }

    #[inline]
    pub const fn get(&self) -> u16 {
        self.size
    }

    /// Counts a call that took `latency` in a batch of at most `size` calls.
    #[inline]
    pub fn sample(&mut self, latency: Duration, size: u16, is_full: bool) {
        let BatchSizing::Automatic { latency_max_us, tolerance_percent } = self.sizing else { return };
        // Calls of batches with an earlier size do not count.
        if size != self.size {
            return;
        }
        self.seen += 1;
        self.late += u32::from(latency > Duration::from_micros(latency_max_us.into()));
        self.in_full += u32::from(is_full);
        if self.seen == CALLS_PER_DECISION {
            self.decide(f64::from(tolerance_percent) / 100.0);
        }
    }

    fn decide(&mut self, tolerance: f64) {
        let late = f64::from(self.late) / f64::from(self.seen);
        // If calls are too rare to fill a batch, a larger size has no effect now, and would be too large when calls
        // become frequent.
        let is_filled = 2 * self.in_full >= self.seen;
        if late > tolerance {
            self.size = (self.size - 1).max(1);
        } else if late < 0.1 * tolerance && is_filled {
            self.size = (self.size + 1).min(BatchConfig::CALLS_MAX);
        }
        (self.seen, self.late, self.in_full) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(10);

    fn automatic() -> BatchSize {
        BatchSize::new(BatchSizing::Automatic { latency_max_us: 10, tolerance_percent: 5 })
    }

    /// Makes one decision, in which `late_per_mille` of 1,000 calls are late.
    fn decide(size: &mut BatchSize, late_per_mille: u32, is_full: bool) -> u16 {
        for call in 0..CALLS_PER_DECISION {
            let is_late = (call + 1) * late_per_mille / 1_000 > call * late_per_mille / 1_000;
            size.sample(if is_late { 2 * LIMIT } else { LIMIT }, size.get(), is_full);
        }
        size.get()
    }

    #[test]
    fn it_grows_only_far_below_the_tolerance_and_shrinks_above_it() {
        let mut size = automatic();
        assert_eq!((decide(&mut size, 0, true), decide(&mut size, 4, true)), (2, 3));
        assert_eq!((decide(&mut size, 6, true), decide(&mut size, 49, true)), (3, 3));
        assert_eq!((decide(&mut size, 52, true), decide(&mut size, 1_000, false)), (2, 1));
        assert_eq!(decide(&mut size, 1_000, true), 1);
        assert_eq!(decide(&mut size, 0, false), 1, "batches that are not full say nothing for larger ones");
    }

    #[test]
    fn it_stays_in_its_range() {
        let mut size = automatic();
        let last = (0..300).map(|_| decide(&mut size, 0, true)).last();
        assert_eq!(last, Some(BatchConfig::CALLS_MAX));
    }

    #[test]
    fn calls_of_another_size_are_not_counted() {
        let mut size = automatic();
        (0..10 * CALLS_PER_DECISION).for_each(|_| size.sample(LIMIT, 2, true));
        assert_eq!(size.get(), 1);
        let mut size = BatchSize::new(BatchSizing::Fixed(7));
        assert_eq!(decide(&mut size, 0, true), 7);
    }

    /// With a latency that grows with the size, the size settles at the limit, also after the load has changed.
    #[test]
    fn it_follows_the_load() {
        let mut size = automatic();
        let mut settle = |ns_per_call: u64| {
            for _ in 0..200 * CALLS_PER_DECISION {
                let latency = Duration::from_nanos(ns_per_call * u64::from(size.get()));
                size.sample(latency, size.get(), true);
            }
            size.get()
        };
        assert!((10..=11).contains(&settle(1_000)));
        assert!((40..=41).contains(&settle(250)));
        assert!((5..=6).contains(&settle(2_000)));
    }
}
