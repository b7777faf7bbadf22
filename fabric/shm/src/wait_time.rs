//! Measurement of a waiting time.

use std::time::{Duration, Instant};

/// Maximum time between two samples that counts. A waiting thread takes samples more often, unless it gets no processor
/// or the machine is suspended; the process it waits for may not have run either in that time.
const LOOK: Duration = Duration::from_millis(50);

/// Time that a thread has waited since its first sample.
#[derive(Default)]
pub struct WaitTime {
    last: Option<Instant>,
    sum: Duration,
}

impl WaitTime {
    /// Takes a sample and returns the sum.
    pub fn sample(&mut self) -> Duration {
        self.sample_at(Instant::now())
    }

    /// Returns the sum at the last sample.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// Ends a wait: the time since the last sample does not count, and `forgiven` is subtracted from the sum.
    pub fn end(&mut self, forgiven: Duration) {
        self.last = None;
        self.sum = self.sum.saturating_sub(forgiven);
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

    #[test]
    fn excludes_forgiven_time_and_gaps_between_waits() {
        let (mut waited, begin) = (WaitTime::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        waited.sample_at(at(0));
        waited.sample_at(at(40));
        waited.end(Duration::from_millis(15));
        assert_eq!([80, 85].map(|ms| waited.sample_at(at(ms)).as_millis()), [25, 30]);
        waited.end(Duration::from_secs(1));
        assert_eq!(waited.sum(), Duration::ZERO);
    }
}
