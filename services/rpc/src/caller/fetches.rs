//! When responses are fetched, and how many at once.

use std::time::Duration;

use farcall_verbs::Nanos;

/// Pause after the first fetch in excess of those without a pause ([`crate::tune::Tuner::fetches_without_pause`]); doubles each
/// time.
const PAUSE: Duration = Duration::from_micros(1);
const PAUSE_DOUBLINGS_MAX: u32 = 6;
/// The same if the server was requested to push the response: from 1 ms, so that the client that requested it sleeps,
/// to 131 ms.
const PUSHED_PAUSE_DOUBLINGS_MORE: u32 = 9;
const PUSHED_PAUSE_DOUBLINGS_MAX: u32 = 17;
/// Schedule of the READs of one connection.
#[derive(Debug)]
pub(crate) struct Fetches {
    /// When the next READ may be posted; `None`: now.
    next: Option<Nanos>,
    /// Maximum number of messages to fetch at once.
    ahead: u32,
    /// Number of READs in flight.
    in_flight: u32,
}

impl Fetches {
    /// Upper bound of the number of messages fetched at once.
    pub const AHEAD_MAX: u32 = 8;

    /// Creates the schedule of a new connection.
    pub const fn new() -> Self {
        Self { next: None, ahead: 1, in_flight: 0 }
    }

    /// Returns when the next READ may be posted, if fetching is paused.
    #[inline]
    pub const fn next(&self) -> Option<Nanos> {
        self.next
    }

    /// Returns whether no READ may be posted yet.
    #[inline]
    pub fn is_paused(&self, now: Nanos) -> bool {
        self.next.is_some_and(|at| now < at)
    }

    /// Ends a pause.
    #[inline]
    pub const fn resume(&mut self) {
        self.next = None;
    }

    /// Returns the maximum number of messages to fetch at once.
    #[inline]
    pub const fn ahead(&self) -> u32 {
        self.ahead
    }

    /// Records a fetch that found a response: doubles the number of messages fetched at once.
    #[inline]
    pub fn widen(&mut self) {
        self.ahead = (self.ahead * 2).min(Self::AHEAD_MAX);
    }

    /// Records a fetch that found no response: fetches one message at a time, and pauses if `beyond`, the number of
    /// such fetches in excess of those without a pause, is not 0. Pauses are longer if the server was requested to push
    /// the response.
    pub fn on_failure(&mut self, beyond: u32, is_pushed: bool, now: Nanos) {
        self.ahead = 1;
        if beyond > 0 {
            let doublings = if is_pushed {
                beyond.saturating_add(PUSHED_PAUSE_DOUBLINGS_MORE).min(PUSHED_PAUSE_DOUBLINGS_MAX)
            } else {
                beyond.min(PAUSE_DOUBLINGS_MAX)
            };
            self.next = Some(now + PAUSE * (1 << doublings));
        }
    }

    /// Records a fetch that found a response with a wrong checksum, for the `checks`th time.
    pub fn on_corrupt(&mut self, checks: u32, now: Nanos) {
        self.next = Some(now + PAUSE * (1 << checks.min(PAUSE_DOUBLINGS_MAX)));
    }

    /// Records that a READ was posted.
    #[inline]
    pub const fn on_post(&mut self) {
        self.in_flight += 1;
    }

    /// Records that a READ has completed.
    #[inline]
    pub const fn on_completion(&mut self) {
        self.in_flight -= 1;
    }

    /// Returns whether READs are in flight.
    #[inline]
    pub const fn are_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Records that the connection has ended: its READs do not complete any more.
    pub const fn on_disconnect(&mut self) {
        self.in_flight = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_up_to_a_bound_and_narrows_at_once() {
        let mut fetches = Fetches::new();
        let widths: Vec<u32> = (0..5).map(|_| (fetches.ahead(), fetches.widen()).0).collect();
        assert_eq!(widths, [1, 2, 4, 8, Fetches::AHEAD_MAX]);
        fetches.on_failure(0, false, Nanos(0));
        assert_eq!((fetches.ahead(), fetches.next()), (1, None));
    }

    #[test]
    fn doubles_pauses_up_to_a_bound() {
        let mut fetches = Fetches::new();
        let mut pause_ns = |beyond, is_pushed| {
            fetches.on_failure(beyond, is_pushed, Nanos(10));
            let until = fetches.next().unwrap();
            assert!(fetches.is_paused(Nanos(until.0 - 1)) && !fetches.is_paused(until));
            until.0 - 10
        };
        assert_eq!([1, 2, 6, 7].map(|beyond| pause_ns(beyond, false)), [2_000, 4_000, 64_000, 64_000]);
        assert_eq!([1, 8, 9].map(|beyond| pause_ns(beyond, true)), [1_024_000, 131_072_000, 131_072_000]);
        fetches.resume();
        assert!(!fetches.is_paused(Nanos(0)));
        fetches.on_corrupt(1, Nanos(0));
        assert_eq!(fetches.next(), Some(Nanos(2_000)));
    }
}
