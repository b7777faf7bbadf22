//! When to poll on and when to sleep.

use farcall_link::Waiting;

use crate::spin::Spin;

/// Counts idle turns for a way of waiting.
#[derive(Clone, Debug)]
pub struct IdleTurns {
    waiting: Waiting,
    count: u32,
    /// Of a way that counts time instead.
    spin: Option<Spin>,
}

/// Polls of the naive hybrid before it sleeps, counted from its last sleep and not from the last work: that is what the
/// adaptive way (RDMAbox, algorithm 3) improves on.
const NAIVE_POLLS: u32 = 1_000;

impl IdleTurns {
    /// Starts without idle turns.
    pub fn new(waiting: Waiting) -> Self {
        let spin = match waiting {
            Waiting::Bpev { bp_timeout_us } => Some(Spin::new(bp_timeout_us)),
            _ => None,
        };
        Self { waiting, count: 0, spin }
    }

    /// A turn had work.
    #[inline]
    pub fn worked(&mut self) {
        if !matches!(self.waiting, Waiting::NaiveHybrid) {
            self.count = 0;
        }
        if let Some(spin) = &mut self.spin {
            spin.found();
        }
    }

    /// A turn of so many looks ([`farcall_verbs::Endpoint::looks`]) had none. Returns whether it is time to sleep (see
    /// [`crate::arm_then_look`]).
    #[inline]
    pub fn was_idle(&mut self, looks: u32) -> bool {
        if let Some(spin) = &mut self.spin {
            return !spin.goes_on();
        }
        self.count = self.count.saturating_add(looks);
        let sleeps_after = match self.waiting {
            Waiting::Busy => return false,
            Waiting::NaiveHybrid => NAIVE_POLLS,
            Waiting::Adaptive { max_retry } => max_retry,
            // By events; ways that are not known here do the same.
            _ => 0,
        };
        self.count > sleeps_after
    }

    /// Nothing is expected soon: it is time to sleep, unless its way of waiting never does.
    #[inline]
    pub fn end(&mut self) {
        self.count = u32::MAX;
        if let Some(spin) = &mut self.spin {
            spin.end();
        }
    }

    /// It slept. (Time goes on: what wakes it in vain is no reason to poll.)
    pub fn woke(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_turns_before_sleep(turns: &mut IdleTurns) -> usize {
        (0..10_000).position(|_| turns.was_idle(1)).unwrap_or(usize::MAX)
    }

    #[test]
    fn each_way_of_waiting_sleeps_when_it_says() {
        let adaptive = Waiting::Adaptive { max_retry: 120 };
        for (waiting, turns) in [
            (Waiting::Busy, usize::MAX),
            (Waiting::EventBatch, 0),
            (Waiting::NaiveHybrid, 1000),
            (adaptive, 120),
        ] {
            assert_eq!(idle_turns_before_sleep(&mut IdleTurns::new(waiting)), turns, "{waiting:?}");
        }
    }

    #[test]
    fn a_time_without_events_is_polled_for_once() {
        for (bp_timeout_us, polls) in [(0, 0), (3_000_000_000, usize::MAX)] {
            let waiting = Waiting::Bpev { bp_timeout_us: Some(bp_timeout_us) };
            assert_eq!(idle_turns_before_sleep(&mut IdleTurns::new(waiting)), polls, "{waiting:?}");
        }
        let mut turns = IdleTurns::new(Waiting::Bpev { bp_timeout_us: Some(3_000_000_000) });
        turns.end();
        assert!(turns.was_idle(1));
        turns.woke();
        assert!(turns.was_idle(1), "woken in vain");
        turns.worked();
        assert!(!turns.was_idle(1));
    }

    #[test]
    fn a_turn_of_many_looks_counts_for_as_many() {
        let mut turns = IdleTurns::new(Waiting::Adaptive { max_retry: 120 });
        assert!(!turns.was_idle(100) && turns.was_idle(21));
    }

    #[test]
    fn idle_turns_that_are_ended_are_over_unless_they_never_end() {
        for waiting in [Waiting::EventBatch, Waiting::NaiveHybrid, Waiting::Adaptive { max_retry: 120 }] {
            let mut turns = IdleTurns::new(waiting);
            turns.end();
            assert_eq!(idle_turns_before_sleep(&mut turns), 0, "{waiting:?}");
        }
        let mut busy = IdleTurns::new(Waiting::Busy);
        busy.end();
        assert!(!busy.was_idle(1));
    }

    #[test]
    fn only_adaptive_waiting_begins_anew_with_work() {
        for (waiting, after_work) in
            [(Waiting::Adaptive { max_retry: 100 }, 100), (Waiting::NaiveHybrid, 1000 - 60)]
        {
            let mut turns = IdleTurns::new(waiting);
            for _ in 0..60 {
                assert!(!turns.was_idle(1));
            }
            turns.worked();
            assert_eq!(idle_turns_before_sleep(&mut turns), after_work, "{waiting:?}");
        }
    }
}
