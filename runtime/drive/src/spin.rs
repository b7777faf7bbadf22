//! Time for which a thread polls without success before it sleeps: the `bp_timeout` of RR-Compound (algorithm 2),
//! configured or measured.
//!
//! A measured timeout follows the duration of waits. It is twice the usual wait as long as waits are short enough for
//! polling, and is halved after each wait that was longer. [`crate::IdleTurns`] does not spin while threads compete
//! for the processors.

use std::time::Duration;

use farcall_verbs::{Clock, MonotonicClock, Nanos};

/// Maximum measured timeout: about the cost of a sleep and a wake-up.
const LONGEST: Duration = Duration::from_micros(50);
/// Minimum measured timeout; a shorter one counts as zero.
const SHORTEST: Duration = Duration::from_micros(1);
/// If the timeout is zero, one of every `TRY_EVERY` waits polls even so, because waits may have become short.
const TRY_EVERY: u32 = 64;
/// Number of polls between two clock reads.
const LOOKS_PER_CLOCK: u32 = 8;

/// The polling state of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    clock: MonotonicClock,
    is_measured: bool,
    timeout: Duration,
    usual: Duration,
    waits_in_vain: u32,
    /// Start of the current wait; `None` if there is none.
    began: Option<Nanos>,
    until: Nanos,
    looks: u32,
}

impl Spin {
    /// Creates the state for a configured timeout; `None` measures it.
    pub fn new(bp_timeout_us: Option<u32>) -> Self {
        let timeout = bp_timeout_us.map_or(LONGEST, |us| Duration::from_micros(us.into()));
        Self {
            clock: MonotonicClock::new(),
            is_measured: bp_timeout_us.is_none(),
            timeout,
            usual: timeout / 2,
            waits_in_vain: 0,
            began: None,
            until: Nanos(0),
            looks: 0,
        }
    }

    /// Records an empty poll. Returns whether to continue polling.
    #[inline]
    pub fn goes_on(&mut self) -> bool {
        if self.began.is_none() {
            return self.begin();
        }
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS_PER_CLOCK) || self.clock.now() < self.until {
            return true;
        }
        // After a spurious wake-up the next call reads the clock again.
        self.looks -= 1;
        false
    }

    fn begin(&mut self) -> bool {
        let now = self.clock.now();
        self.began = Some(now);
        self.looks = 0;
        self.until = if self.is_measured { now + self.allowed() } else { now + self.timeout };
        now < self.until
    }

    fn allowed(&mut self) -> Duration {
        if self.timeout < SHORTEST {
            self.waits_in_vain += 1;
            return if self.waits_in_vain.is_multiple_of(TRY_EVERY) { LONGEST } else { Duration::ZERO };
        }
        self.timeout
    }

    /// Records that the wait was successful.
    #[inline]
    pub fn found(&mut self) {
        if let Some(began) = self.began.take()
            && self.is_measured
        {
            self.learn(self.clock.now().since(began));
        }
    }

    fn learn(&mut self, waited: Duration) {
        if waited > LONGEST {
            self.timeout /= 2;
            return;
        }
        self.usual = (self.usual * 7 + waited) / 8;
        self.timeout = (self.usual * 2).clamp(SHORTEST, LONGEST);
    }

    /// Ends polling for the current wait.
    pub fn end(&mut self) {
        let now = self.clock.now();
        self.began.get_or_insert(now);
        (self.until, self.looks) = (now, LOOKS_PER_CLOCK - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: impl IntoIterator<Item = Duration>) -> Duration {
        let mut spin = Spin::new(None);
        waits.into_iter().for_each(|wait| spin.learn(wait));
        spin.timeout
    }

    #[test]
    fn a_measured_timeout_follows_the_round_trip() {
        let trip = Duration::from_micros(5);
        let timeout = after([trip; 100]);
        assert!(timeout >= trip && timeout <= trip * 3, "{timeout:?}");
        assert_eq!(after([LONGEST; 100]), LONGEST);
    }

    #[test]
    fn stops_unsuccessful_spinning_and_resumes_with_short_waits() {
        let long = Duration::from_millis(1);
        assert!(after([long; 10]) < SHORTEST);
        assert!(
            after([long; 10].into_iter().chain([Duration::from_micros(5); 20])) >= Duration::from_micros(5)
        );
        let mut spin = Spin::new(None);
        (0..10).for_each(|_| spin.learn(long));
        let tried = (0..TRY_EVERY).filter(|_| !spin.allowed().is_zero()).count();
        assert!(tried >= 1);
    }

    #[test]
    fn a_given_timeout_is_kept() {
        let mut none = Spin::new(Some(0));
        let mut long = Spin::new(Some(u32::MAX));
        assert!(!none.goes_on());
        (0..100).for_each(|_| assert!(long.goes_on()));
        long.end();
        assert!(!long.goes_on());
        long.found();
        assert_eq!(long.timeout, Duration::from_micros(u32::MAX.into()));
        assert!(long.goes_on());
    }
}
