//! Time for which a thread polls without success before it sleeps: the `bp_timeout` of RR-Compound (algorithm 2),
//! configured or measured.
//!
//! A measured timeout follows the duration of waits. It is twice the usual wait as long as waits are short enough for
//! polling, and is halved after each wait that was longer. [`crate::IdlePolicy`] does not spin while threads compete
//! for the processors.

use std::time::Duration;

use farcall_verbs::{Clock, MonotonicClock, Nanos};

/// Maximum measured timeout: about the cost of a sleep and a wake-up.
const TIMEOUT_MAX: Duration = Duration::from_micros(50);
/// Minimum measured timeout; a shorter one counts as zero.
const TIMEOUT_MIN: Duration = Duration::from_micros(1);
/// If the timeout is zero, one of every `RETRY_EVERY` waits polls even so, because waits may have become short.
const RETRY_EVERY: u32 = 64;
/// Number of polls between two clock reads.
const POLLS_PER_CLOCK: u32 = 8;

/// The polling state of one thread.
#[derive(Clone, Debug)]
pub(crate) struct SpinPolicy {
    clock: MonotonicClock,
    is_measured: bool,
    timeout: Duration,
    usual_wait: Duration,
    unsuccessful_waits: u32,
    /// Start of the current wait; `None` if there is none.
    began: Option<Nanos>,
    until: Nanos,
    polls: u32,
}

impl SpinPolicy {
    /// Creates the state for a configured timeout; `None` measures it.
    pub fn new(bp_timeout_us: Option<u32>) -> Self {
        let timeout = bp_timeout_us.map_or(TIMEOUT_MAX, |us| Duration::from_micros(us.into()));
        Self {
            clock: MonotonicClock::new(),
            is_measured: bp_timeout_us.is_none(),
            timeout,
            usual_wait: timeout / 2,
            unsuccessful_waits: 0,
            began: None,
            until: Nanos(0),
            polls: 0,
        }
    }

    /// Records an empty poll. Returns whether to continue polling.
    #[inline]
    pub fn should_spin(&mut self) -> bool {
        if self.began.is_none() {
            return self.begin();
        }
        self.polls += 1;
        if !self.polls.is_multiple_of(POLLS_PER_CLOCK) || self.clock.now() < self.until {
            return true;
        }
        // After a spurious wake-up the next call reads the clock again.
        self.polls -= 1;
        false
    }

    fn begin(&mut self) -> bool {
        let now = self.clock.now();
        self.began = Some(now);
        self.polls = 0;
        self.until = if self.is_measured { now + self.next_timeout() } else { now + self.timeout };
        now < self.until
    }

    fn next_timeout(&mut self) -> Duration {
        if self.timeout < TIMEOUT_MIN {
            self.unsuccessful_waits += 1;
            return if self.unsuccessful_waits.is_multiple_of(RETRY_EVERY) {
                TIMEOUT_MAX
            } else {
                Duration::ZERO
            };
        }
        self.timeout
    }

    /// Records that the wait was successful.
    #[inline]
    pub fn on_success(&mut self) {
        if let Some(began) = self.began.take()
            && self.is_measured
        {
            self.update_estimate(self.clock.now().since(began));
        }
    }

    fn update_estimate(&mut self, waited: Duration) {
        if waited > TIMEOUT_MAX {
            self.timeout /= 2;
            return;
        }
        self.usual_wait = (self.usual_wait * 7 + waited) / 8;
        self.timeout = (self.usual_wait * 2).clamp(TIMEOUT_MIN, TIMEOUT_MAX);
    }

    /// Ends polling for the current wait.
    pub fn end(&mut self) {
        let now = self.clock.now();
        self.began.get_or_insert(now);
        (self.until, self.polls) = (now, POLLS_PER_CLOCK - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: impl IntoIterator<Item = Duration>) -> Duration {
        let mut spin = SpinPolicy::new(None);
        waits.into_iter().for_each(|wait| spin.update_estimate(wait));
        spin.timeout
    }

    #[test]
    fn a_measured_timeout_follows_the_round_trip() {
        let trip = Duration::from_micros(5);
        let timeout = after([trip; 100]);
        assert!(timeout >= trip && timeout <= trip * 3, "{timeout:?}");
        assert_eq!(after([TIMEOUT_MAX; 100]), TIMEOUT_MAX);
    }

    #[test]
    fn stops_unsuccessful_spinning_and_resumes_with_short_waits() {
        let long = Duration::from_millis(1);
        assert!(after([long; 10]) < TIMEOUT_MIN);
        assert!(
            after([long; 10].into_iter().chain([Duration::from_micros(5); 20])) >= Duration::from_micros(5)
        );
        let mut spin = SpinPolicy::new(None);
        (0..10).for_each(|_| spin.update_estimate(long));
        let tried = (0..RETRY_EVERY).filter(|_| !spin.next_timeout().is_zero()).count();
        assert!(tried >= 1);
    }

    #[test]
    fn a_given_timeout_is_kept() {
        let mut none = SpinPolicy::new(Some(0));
        let mut long = SpinPolicy::new(Some(u32::MAX));
        assert!(!none.should_spin());
        (0..100).for_each(|_| assert!(long.should_spin()));
        long.end();
        assert!(!long.should_spin());
        long.on_success();
        assert_eq!(long.timeout, Duration::from_micros(u32::MAX.into()));
        assert!(long.should_spin());
    }
}
