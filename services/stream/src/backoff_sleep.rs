//! Sleeps with exponentially increasing timeouts, for conditions that no event reports.

use std::time::Duration;

use farcall_verbs::Nanos;

#[derive(Debug)]
pub(crate) struct BackoffSleep {
    next: Duration,
    pub until: Nanos,
}

const BACKOFF_MIN: Duration = Duration::from_micros(20);

impl Default for BackoffSleep {
    fn default() -> Self {
        Self { next: BACKOFF_MIN, until: Nanos(0) }
    }
}

impl BackoffSleep {
    pub fn begin(&mut self, now: Nanos, longest: Duration) {
        self.until = now + self.next;
        self.next = (self.next * 2).min(longest);
    }
}
