//! When responses are fetched, and how many at once.

use std::time::Duration;

use farcall_verbs::Nanos;

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

    /// Posts no READ for `pause`.
    pub fn pause(&mut self, pause: Duration, now: Nanos) {
        self.next = Some(now + pause);
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

    /// Records a fetch that found no response: fetches one message at a time.
    pub const fn narrow(&mut self) {
        self.ahead = 1;
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
        fetches.narrow();
        assert_eq!(fetches.ahead(), 1);
    }

    #[test]
    fn pauses_until_the_time_or_a_response() {
        let mut fetches = Fetches::new();
        assert!(!fetches.is_paused(Nanos(0)));
        fetches.pause(Duration::from_nanos(5), Nanos(10));
        assert_eq!(
            (fetches.next(), fetches.is_paused(Nanos(14)), fetches.is_paused(Nanos(15))),
            (Some(Nanos(15)), true, false)
        );
        fetches.resume();
        assert!(!fetches.is_paused(Nanos(0)));
    }
}
