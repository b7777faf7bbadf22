//! How long something has been waited for.

use std::time::{Duration, Instant};

/// What the time between two looks counts at most. Who waits looks more often, unless he gets no processor, or the
/// whole machine stands still; then what he waits for may have had none either.
const LOOK: Duration = Duration::from_millis(50);

/// Time that somebody has waited, from his first look on.
#[derive(Default)]
pub struct WaitTime {
    last: Option<Instant>,
    sum: Duration,
}

impl WaitTime {
    /// Looks once more.
    pub fn sample(&mut self) -> Duration {
        self.sample_at(Instant::now())
    }

    /// As at the last look.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    fn sample_at(&mut self, now: Instant) -> Duration {
        if let Some(last) = self.last.replace(now) {
            self.sum += now.saturating_duration_since(last).min(LOOK);
        }
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_is_no_long_wait() {
        let mut waited = WaitTime::default();
        let begin = Instant::now();
        let mut look = |at_ms| waited.sample_at(begin + Duration::from_millis(at_ms)).as_millis();
        assert_eq!([0, 20, 45, 45, 95].map(&mut look), [0, 20, 45, 45, 95]);
        assert_eq!([60_000, 60_001].map(&mut look), [145, 146]);
    }
}
