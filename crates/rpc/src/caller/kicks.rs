//! When a server that does not answer is woken, or asked again.

use std::time::Duration;

use farcall_verbs::Nanos;

use crate::wire::Seq;

/// The longest pause between wake-ups of a server that does not answer.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Wake-ups without a response beyond one for each message: the server keeps receives for as many.
const UNANSWERED_MAX: u32 = 12;

/// The timer: pauses double until a response comes. Its clock is its owner's.
pub(super) struct Kicks {
    /// When to wake the server next if nothing comes; nothing if no message waits for a response.
    at: Option<Nanos>,
    /// The pause after that.
    pause: Duration,
    /// The first pause.
    first_pause: Duration,
    /// Since when messages wait and no response has come.
    silent_since: Nanos,
    /// Wake-ups since the last response.
    unanswered: u32,
    /// Messages before this one are known to the server: it was woken after they were sent.
    covered: Seq,
    /// Whether the owner is about to sleep, or sleeps.
    pub is_armed: bool,
}

impl Kicks {
    pub const fn new(first_pause: Duration) -> Self {
        Self {
            at: None,
            pause: first_pause,
            first_pause,
            silent_since: Nanos(0),
            unanswered: 0,
            covered: Seq::FIRST,
            is_armed: false,
        }
    }

    /// Nothing of an earlier connection counts; messages before `covered` have not been sent over this one.
    pub const fn restart(&mut self, covered: Seq) {
        self.covered = covered;
        self.at = None;
    }

    /// A message was sent.
    #[inline]
    pub fn sent(&mut self, now: Nanos) {
        if self.at.is_none() {
            self.at = Some(now + self.pause);
            self.silent_since = now;
        }
    }

    /// The server lives; `more` messages wait for their responses.
    #[inline]
    pub fn answered(&mut self, more: bool, now: Nanos) {
        self.unanswered = 0;
        self.pause = self.first_pause;
        self.at = more.then(|| now + self.pause);
        self.silent_since = now;
    }

    /// The server was woken after all messages before `next` were sent.
    pub const fn kicked(&mut self, next: Seq) {
        self.unanswered += 1;
        self.covered = next;
    }

    /// Whether the server was woken after all messages before `next` were sent.
    pub fn covers(&self, next: Seq) -> bool {
        self.covered == next
    }

    /// Whether the server was woken since the last response.
    pub const fn has_asked(&self) -> bool {
        self.unanswered > 0
    }

    /// Whether a further wake-up could find no receive.
    pub const fn is_enough(&self) -> bool {
        self.unanswered >= UNANSWERED_MAX
    }

    /// When to wake the server next.
    #[inline]
    pub const fn at(&self) -> Option<Nanos> {
        self.at
    }

    /// Whether it is time for that.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// The next time comes after twice the pause.
    pub fn next_pause(&mut self, now: Nanos) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        // Unless nothing waits any more.
        self.at = self.at.map(|_| now + self.pause);
    }

    /// For how long messages wait and no response has come.
    pub fn silence(&self, now: Nanos) -> Duration {
        now.since(self.silent_since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_micros(50);

    /// When the timer is due, for so long as nothing comes.
    fn times(kicks: &mut Kicks, count: usize) -> Vec<u64> {
        let next = |_| {
            let at = kicks.at().unwrap();
            assert!(kicks.is_due(at) && !kicks.is_due(Nanos(at.0 - 1)));
            kicks.next_pause(at);
            at.0 / 1_000
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn pauses_double_up_to_a_bound_until_a_response_comes() {
        let mut kicks = Kicks::new(FIRST);
        assert_eq!((kicks.at(), kicks.is_due(Nanos(u64::MAX))), (None, false), "nothing waits");
        kicks.sent(Nanos(0));
        let all = times(&mut kicks, 15);
        assert_eq!(all[..5], [50, 150, 350, 750, 1_550]);
        assert_eq!(all[14] - all[13], 100_000);
        let later = Nanos(all[14] * 1_000);
        kicks.answered(true, later);
        assert_eq!(kicks.at(), Some(later + FIRST));
        kicks.answered(false, later);
        assert_eq!(kicks.at(), None);
    }

    #[test]
    fn silence_counts_from_the_first_message_that_waits_or_the_last_response() {
        let mut kicks = Kicks::new(FIRST);
        kicks.sent(Nanos(1_000));
        kicks.sent(Nanos(5_000));
        assert_eq!(kicks.silence(Nanos(9_000)), Duration::from_micros(8));
        kicks.kicked(Seq(3));
        assert!(kicks.has_asked() && kicks.covers(Seq(3)) && !kicks.covers(Seq(4)));
        kicks.answered(true, Nanos(6_000));
        assert_eq!((kicks.has_asked(), kicks.silence(Nanos(9_000))), (false, Duration::from_micros(3)));
    }
}
