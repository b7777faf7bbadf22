//! When a server that does not answer is woken, or asked again.

use std::time::Duration;

use farcall_verbs::Nanos;

use crate::wire::Seq;

/// The longest pause between wake-ups of a server that does not answer.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The first pause at a server that sleeps at once: it polls no longer than a client that is about to sleep.
const PAUSE_OF_SLEEPER: Duration = Duration::from_micros(1);
/// One in so many waits for such a server has the usual first pause: the server may poll again.
const WAITS_PER_TRIAL: u32 = 64;
/// Wake-ups without a response beyond one for each message: the server keeps receives for as many.
const UNANSWERED_MAX: u32 = 12;

/// The timer: pauses double until a response comes. Its clock is its owner's.
///
/// A server that was woken after all messages were sent has them, if messages are placed in order: what it does then
/// takes its time, and further wake-ups would only take processor time from it. So the next is [`PAUSE_MAX`] later.
///
/// A server that sleeps at once, as under contention for processors, answers only after a wake-up. A client that has
/// seen that wakes it without the usual first pause.
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
    /// Whether the server was woken after all messages were sent, and has them.
    is_told_of_all: bool,
    /// Whether the timer woke the server since the last response.
    was_due: bool,
    /// Whether the server answered only after the timer had woken it, when that was tried last.
    sleeps_at_once: bool,
    /// Times that the timer was set at such a server.
    waits: u32,
    /// Whether this time is a trial.
    is_trial: bool,
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
            is_told_of_all: false,
            was_due: false,
            sleeps_at_once: false,
            waits: 0,
            is_trial: false,
            is_armed: false,
        }
    }

    /// Nothing of an earlier connection counts; messages before `covered` have not been sent over this one.
    pub const fn restart(&mut self, covered: Seq) {
        self.covered = covered;
        self.at = None;
        self.is_told_of_all = false;
        self.was_due = false;
    }

    /// A message was sent.
    #[inline]
    pub fn sent(&mut self, now: Nanos) {
        if self.at.is_none() {
            self.silent_since = now;
        }
        let was_told_of_all = std::mem::take(&mut self.is_told_of_all);
        if self.at.is_none() || was_told_of_all {
            let pause = if self.sleeps_at_once { self.pause_of_sleeper() } else { self.pause };
            self.at = Some(now + pause);
        }
    }

    /// The first pause at a server that sleeps at once, unless it is tried whether it still does.
    fn pause_of_sleeper(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        self.is_trial = self.waits.is_multiple_of(WAITS_PER_TRIAL);
        if self.is_trial { self.pause } else { PAUSE_OF_SLEEPER.min(self.pause) }
    }

    /// The server lives; `more` messages wait for their responses.
    #[inline]
    pub fn answered(&mut self, more: bool, now: Nanos) {
        // A response without any wake-up comes from a server that polls.
        self.sleeps_at_once = self.was_due || (self.sleeps_at_once && self.unanswered > 0);
        self.was_due = false;
        self.unanswered = 0;
        self.pause = self.first_pause;
        let pause = if self.is_told_of_all { PAUSE_MAX } else { self.pause };
        self.at = more.then(|| now + pause);
        self.silent_since = now;
    }

    /// The server was woken after all messages before `next` were sent.
    pub const fn kicked(&mut self, next: Seq) {
        self.unanswered += 1;
        self.covered = next;
    }

    /// With that wake-up the server has all messages.
    pub fn told_of_all(&mut self) {
        if !std::mem::replace(&mut self.is_told_of_all, true) {
            self.at = self.at.map(|at| at + PAUSE_MAX);
        }
    }

    /// The next time comes after the longest pause.
    pub fn longest_pause(&mut self, now: Nanos) {
        // Unless nothing waits any more.
        self.at = self.at.map(|_| now + PAUSE_MAX);
    }

    /// Whether no message was sent since.
    pub const fn is_told_of_all(&self) -> bool {
        self.is_told_of_all
    }

    /// The timer is due, and wakes the server.
    pub const fn was_due(&mut self) {
        self.was_due = true;
    }

    /// Whether the server is to be woken without the usual first pause.
    pub const fn sleeps_at_once(&self) -> bool {
        self.sleeps_at_once && !self.is_trial
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
    fn waits_long_for_a_server_that_has_all_messages() {
        let mut kicks = Kicks::new(FIRST);
        kicks.sent(Nanos(0));
        kicks.kicked(Seq(2));
        kicks.told_of_all();
        assert_eq!(kicks.at(), Some(Nanos(0) + FIRST + PAUSE_MAX));
        // A message that it does not have.
        let later = Nanos(10_000);
        kicks.sent(later);
        assert_eq!(kicks.at(), Some(later + FIRST));
        kicks.kicked(Seq(3));
        kicks.told_of_all();
        kicks.answered(true, later);
        assert_eq!(kicks.at(), Some(later + PAUSE_MAX), "it has the other message, too");
        // The next call after all have ended.
        kicks.answered(false, later);
        kicks.sent(later);
        kicks.kicked(Seq(4));
        kicks.told_of_all();
        assert_eq!(kicks.at(), Some(later + FIRST + PAUSE_MAX));
    }

    #[test]
    fn wakes_a_server_that_sleeps_at_once_without_the_first_pause() {
        let mut kicks = Kicks::new(FIRST);
        let call = |kicks: &mut Kicks, is_woken: bool| {
            kicks.sent(Nanos(0));
            let at = kicks.at();
            if is_woken {
                kicks.was_due();
                kicks.kicked(Seq(2));
            }
            kicks.answered(false, Nanos(0));
            at
        };
        let (usual, at_once) = (Some(Nanos(0) + FIRST), Some(Nanos(0) + PAUSE_OF_SLEEPER));
        assert_eq!([call(&mut kicks, false), call(&mut kicks, true)], [usual; 2]);
        assert!(kicks.sleeps_at_once());
        let all: Vec<_> = (0..WAITS_PER_TRIAL).map(|_| call(&mut kicks, true)).collect();
        assert_eq!(all.iter().filter(|at| **at == at_once).count() as u32, WAITS_PER_TRIAL - 1);
        // It polls again.
        assert_eq!([call(&mut kicks, false), call(&mut kicks, false)], [at_once, usual]);
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
