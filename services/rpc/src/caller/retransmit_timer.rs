//! Wake-ups and repeated requests for a server that does not respond.

use std::time::Duration;

use farcall_verbs::Nanos;

use crate::wire::Seq;

/// The longest pause between wake-ups of a server that does not respond.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The first pause for a server that sleeps at once: it polls no longer than a client that is about to sleep.
const PAUSE_OF_SLEEPER: Duration = Duration::from_micros(1);
/// One in this many waits for such a server has the default first pause, to detect whether the server polls again.
const WAITS_PER_TRIAL: u32 = 64;
/// Maximum number of wake-ups without a response in excess of one for each message: the server posts receives for as
/// many.
const UNANSWERED_MAX: u32 = 12;

/// Timer of the wake-ups: its pauses double until a response arrives. The driver supplies the time.
///
/// If messages are placed in order, a server that was woken after all messages were sent has received them. Further
/// wake-ups would only cost it processor time while it executes them. The next one therefore follows after
/// [`PAUSE_MAX`].
///
/// A server that sleeps at once, as under contention for processors, responds only after a wake-up. A client that has
/// observed this wakes it without the default first pause.
pub(super) struct RetransmitTimer {
    /// When to wake the server next if no response arrives; `None` if no message waits for a response.
    at: Option<Nanos>,
    /// The pause that follows.
    pause: Duration,
    /// The first pause.
    first_pause: Duration,
    /// Time since which messages have waited without a response.
    silent_since: Nanos,
    /// Wake-ups since the last response.
    unanswered: u32,
    /// The server was woken after all messages before this one were sent.
    woken_before: Seq,
    /// `true` if the server was woken after all messages were sent, and has received them.
    all_received: bool,
    /// `true` if the timer has woken the server since the last response.
    was_due: bool,
    /// `true` if the last trial showed that the server responds only after a wake-up by the timer.
    sleeps_at_once: bool,
    /// Number of times that the timer was set for such a server.
    waits: u32,
    /// `true` if the current wait is a trial.
    is_trial: bool,
    /// `true` if the application thread is about to sleep, or sleeps.
    pub is_armed: bool,
}

impl RetransmitTimer {
    pub const fn new(first_pause: Duration) -> Self {
        Self {
            at: None,
            pause: first_pause,
            first_pause,
            silent_since: Nanos(0),
            unanswered: 0,
            woken_before: Seq::FIRST,
            all_received: false,
            was_due: false,
            sleeps_at_once: false,
            waits: 0,
            is_trial: false,
            is_armed: false,
        }
    }

    /// Discards the state of an earlier connection; messages before `woken_before` have not been sent over this one.
    pub const fn restart(&mut self, woken_before: Seq) {
        self.woken_before = woken_before;
        self.at = None;
        self.all_received = false;
        self.was_due = false;
    }

    /// Records that a message was sent.
    #[inline]
    pub fn on_send(&mut self, now: Nanos) {
        if self.at.is_none() {
            self.silent_since = now;
        }
        let had_received_all = std::mem::take(&mut self.all_received);
        if self.at.is_none() || had_received_all {
            let pause = if self.sleeps_at_once { self.pause_of_sleeper() } else { self.pause };
            self.at = Some(now + pause);
        }
    }

    /// Returns the first pause for a server that sleeps at once. A trial uses the default pause.
    fn pause_of_sleeper(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        self.is_trial = self.waits.is_multiple_of(WAITS_PER_TRIAL);
        if self.is_trial { self.pause } else { PAUSE_OF_SLEEPER.min(self.pause) }
    }

    /// Records a response; if `more` is set, other messages still wait for theirs.
    #[inline]
    pub fn on_response(&mut self, more: bool, now: Nanos) {
        // A response without a wake-up comes from a server that polls.
        self.sleeps_at_once = self.was_due || (self.sleeps_at_once && self.unanswered > 0);
        self.was_due = false;
        self.unanswered = 0;
        self.pause = self.first_pause;
        let pause = if self.all_received { PAUSE_MAX } else { self.pause };
        self.at = more.then(|| now + pause);
        self.silent_since = now;
    }

    /// Records a wake-up after all messages before `next` were sent.
    pub const fn on_wake(&mut self, next: Seq) {
        self.unanswered += 1;
        self.woken_before = next;
    }

    /// Records that with this wake-up the server has received all messages.
    pub fn on_all_received(&mut self) {
        if !std::mem::replace(&mut self.all_received, true) {
            self.at = self.at.map(|at| at + PAUSE_MAX);
        }
    }

    /// Sets the timer to the longest pause.
    pub fn set_longest_pause(&mut self, now: Nanos) {
        // `None` if no message waits any more.
        self.at = self.at.map(|_| now + PAUSE_MAX);
    }

    /// Returns whether the server has received all messages.
    pub const fn all_received(&self) -> bool {
        self.all_received
    }

    /// Records that the timer has expired and wakes the server.
    pub const fn was_due(&mut self) {
        self.was_due = true;
    }

    /// Returns whether the server is to be woken without the default first pause.
    pub const fn sleeps_at_once(&self) -> bool {
        self.sleeps_at_once && !self.is_trial
    }

    /// Returns whether the server was woken after all messages before `next` were sent.
    pub fn has_woken_after(&self, next: Seq) -> bool {
        self.woken_before == next
    }

    /// Returns whether the server was woken since the last response.
    pub const fn has_woken(&self) -> bool {
        self.unanswered > 0
    }

    /// Returns whether a further wake-up might find no receive.
    pub const fn is_limit_reached(&self) -> bool {
        self.unanswered >= UNANSWERED_MAX
    }

    /// Returns when to wake the server next.
    #[inline]
    pub const fn at(&self) -> Option<Nanos> {
        self.at
    }

    /// Returns whether the timer has expired.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// Doubles the pause and sets the timer.
    pub fn next_pause(&mut self, now: Nanos) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.at = self.at.map(|_| now + self.pause);
    }

    /// Returns how long messages have waited without a response.
    pub fn silence(&self, now: Nanos) -> Duration {
        now.since(self.silent_since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_micros(50);

    /// Returns the first expiries of the timer while no response arrives, in microseconds.
    fn times(retransmit: &mut RetransmitTimer, count: usize) -> Vec<u64> {
        let next = |_| {
            let at = retransmit.at().unwrap();
            assert!(retransmit.is_due(at) && !retransmit.is_due(Nanos(at.0 - 1)));
            retransmit.next_pause(at);
            at.0 / 1_000
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn doubles_pauses_up_to_a_bound_until_a_response_arrives() {
        let mut retransmit = RetransmitTimer::new(FIRST);
        assert_eq!((retransmit.at(), retransmit.is_due(Nanos(u64::MAX))), (None, false), "nothing waits");
        retransmit.on_send(Nanos(0));
        let all = times(&mut retransmit, 15);
        assert_eq!(all[..5], [50, 150, 350, 750, 1_550]);
        assert_eq!(all[14] - all[13], 100_000);
        let later = Nanos(all[14] * 1_000);
        retransmit.on_response(true, later);
        assert_eq!(retransmit.at(), Some(later + FIRST));
        retransmit.on_response(false, later);
        assert_eq!(retransmit.at(), None);
    }

    #[test]
    fn waits_long_for_a_server_that_has_all_messages() {
        let mut retransmit = RetransmitTimer::new(FIRST);
        retransmit.on_send(Nanos(0));
        retransmit.on_wake(Seq(2));
        retransmit.on_all_received();
        assert_eq!(retransmit.at(), Some(Nanos(0) + FIRST + PAUSE_MAX));
        // A message that the server has not received.
        let later = Nanos(10_000);
        retransmit.on_send(later);
        assert_eq!(retransmit.at(), Some(later + FIRST));
        retransmit.on_wake(Seq(3));
        retransmit.on_all_received();
        retransmit.on_response(true, later);
        assert_eq!(retransmit.at(), Some(later + PAUSE_MAX), "it has the other message, too");
        // The next call after all have ended.
        retransmit.on_response(false, later);
        retransmit.on_send(later);
        retransmit.on_wake(Seq(4));
        retransmit.on_all_received();
        assert_eq!(retransmit.at(), Some(later + FIRST + PAUSE_MAX));
    }

    #[test]
    fn wakes_a_server_that_sleeps_at_once_without_the_first_pause() {
        let mut retransmit = RetransmitTimer::new(FIRST);
        let call = |retransmit: &mut RetransmitTimer, is_woken: bool| {
            retransmit.on_send(Nanos(0));
            let at = retransmit.at();
            if is_woken {
                retransmit.was_due();
                retransmit.on_wake(Seq(2));
            }
            retransmit.on_response(false, Nanos(0));
            at
        };
        let (usual, at_once) = (Some(Nanos(0) + FIRST), Some(Nanos(0) + PAUSE_OF_SLEEPER));
        assert_eq!([call(&mut retransmit, false), call(&mut retransmit, true)], [usual; 2]);
        assert!(retransmit.sleeps_at_once());
        let all: Vec<_> = (0..WAITS_PER_TRIAL).map(|_| call(&mut retransmit, true)).collect();
        assert_eq!(all.iter().filter(|at| **at == at_once).count() as u32, WAITS_PER_TRIAL - 1);
        // The server polls again.
        assert_eq!([call(&mut retransmit, false), call(&mut retransmit, false)], [at_once, usual]);
    }

    #[test]
    fn counts_silence_from_the_first_wait_or_the_last_response() {
        let mut retransmit = RetransmitTimer::new(FIRST);
        retransmit.on_send(Nanos(1_000));
        retransmit.on_send(Nanos(5_000));
        assert_eq!(retransmit.silence(Nanos(9_000)), Duration::from_micros(8));
        retransmit.on_wake(Seq(3));
        assert!(
            retransmit.has_woken()
                && retransmit.has_woken_after(Seq(3))
                && !retransmit.has_woken_after(Seq(4))
        );
        retransmit.on_response(true, Nanos(6_000));
        assert_eq!(
            (retransmit.has_woken(), retransmit.silence(Nanos(9_000))),
            (false, Duration::from_micros(3))
        );
    }
}
