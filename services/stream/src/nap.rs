//! Sleeps with exponentially increasing timeouts, for conditions that no event reports.

use std::time::Duration;

use farcall_verbs::Nanos;

#[derive(Debug)]
pub(crate) struct Nap {
    next: Duration,
    pub until: Nanos,
}

const NAP_MIN: Duration = Duration::from_micros(20);

impl Default for Nap {
    fn default() -> Self {
        Self { next: NAP_MIN, until: Nanos(0) }
    }
}

impl Nap {
    pub fn begin(&mut self, now: Nanos, longest: Duration) {
        self.until = now + self.next;
        self.next = (self.next * 2).min(longest);
    }
}
