//! Decision between polling and sleeping.
//!
//! While threads compete for the processors ([`crate::contention`]), a thread that polls takes the processor from its
//! peer. It also uses up the time that the scheduler would otherwise give it at once when the peer replies. Strategies
//! that poll before sleeping then sleep at once. Two strategies poll even so: [`WaitStrategy::Busy`], and
//! [`WaitStrategy::Bpev`] with a time set by the user.

use farcall_link::WaitStrategy;

use crate::contention;
use crate::spin::SpinPolicy;

/// Counts idle driver iterations for a wait strategy.
#[derive(Clone, Debug)]
pub struct IdlePolicy {
    waiting: WaitStrategy,
    count: u32,
    /// State of a strategy that limits time instead of iterations.
    spin: Option<SpinPolicy>,
    /// Number of idle iterations so far, modulo 2^32.
    idle_iterations: u32,
    /// `true` if threads competed for the processors at the last sample.
    is_contended: bool,
    sample: fn() -> bool,
}

/// Number of idle iterations between two checks whether a sample is due; each check reads the clock.
const TURNS_PER_SAMPLE: u32 = 16;

/// Number of polls of the naive hybrid before it sleeps, counted from its last sleep and not from its last work. The
/// adaptive strategy (RDMAbox, algorithm 3) improves on this.
const NAIVE_POLLS: u32 = 1_000;

impl IdlePolicy {
    /// Creates the state without idle iterations.
    pub fn new(waiting: WaitStrategy) -> Self {
        Self::sampling(waiting, contention::sample_if_due)
    }

    /// Like [`IdlePolicy::new`], but queries contention by `sample`.
    fn sampling(waiting: WaitStrategy, sample: fn() -> bool) -> Self {
        let spin = match waiting {
            WaitStrategy::Bpev { bp_timeout_us } => Some(SpinPolicy::new(bp_timeout_us)),
            _ => None,
        };
        Self { waiting, count: 0, spin, idle_iterations: 0, is_contended: false, sample }
    }

    /// Records an iteration that had work.
    #[inline]
    pub fn worked(&mut self) {
        if !matches!(self.waiting, WaitStrategy::NaiveHybrid) {
            self.count = 0;
        }
        if let Some(spin) = &mut self.spin {
            spin.on_success();
        }
    }

    /// Records an idle iteration that counts as `poll_weight` polls ([`farcall_verbs::Endpoint::poll_weight`]). Returns
    /// whether the thread should sleep now (see [`crate::arm_then_poll`]).
    #[inline]
    pub fn was_idle(&mut self, poll_weight: u32) -> bool {
        if self.sleeps_under_contention() && self.is_contended() {
            return true;
        }
        if let Some(spin) = &mut self.spin {
            return !spin.should_spin();
        }
        self.count = self.count.saturating_add(poll_weight);
        let sleeps_after = match self.waiting {
            WaitStrategy::Busy => return false,
            WaitStrategy::NaiveHybrid => NAIVE_POLLS,
            WaitStrategy::Adaptive { max_retry } => max_retry,
            // Event-based; unknown strategies do the same.
            _ => 0,
        };
        self.count > sleeps_after
    }

    /// Returns whether the strategy sleeps at once under contention.
    #[inline]
    fn sleeps_under_contention(&self) -> bool {
        match self.waiting {
            // The event-based strategy sleeps at once anyway.
            WaitStrategy::Busy | WaitStrategy::Bpev { bp_timeout_us: Some(_) } | WaitStrategy::EventBatch => {
                false
            }
            _ => true,
        }
    }

    #[inline]
    fn is_contended(&mut self) -> bool {
        if self.is_contended || self.idle_iterations.is_multiple_of(TURNS_PER_SAMPLE) {
            self.is_contended = (self.sample)();
        }
        self.idle_iterations = self.idle_iterations.wrapping_add(1);
        self.is_contended
    }

    /// Ends polling because nothing is expected soon: the thread should sleep, unless its strategy never does.
    #[inline]
    pub fn end(&mut self) {
        self.count = u32::MAX;
        if let Some(spin) = &mut self.spin {
            spin.end();
        }
    }

    /// Records a sleep. The measured time continues: a spurious wake-up is no reason to poll.
    pub fn woke(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    /// Creates a policy that never finds contention, whatever other programs run on the machine.
    fn idle_policy(waiting: WaitStrategy) -> IdlePolicy {
        IdlePolicy::sampling(waiting, || false)
    }

    fn idle_polls_before_sleep(turns: &mut IdlePolicy) -> usize {
        (0..10_000).position(|_| turns.was_idle(1)).unwrap_or(usize::MAX)
    }

    #[test]
    fn each_wait_strategy_sleeps_at_its_limit() {
        let adaptive = WaitStrategy::Adaptive { max_retry: 120 };
        for (waiting, turns) in [
            (WaitStrategy::Busy, usize::MAX),
            (WaitStrategy::EventBatch, 0),
            (WaitStrategy::NaiveHybrid, 1000),
            (adaptive, 120),
        ] {
            assert_eq!(idle_polls_before_sleep(&mut idle_policy(waiting)), turns, "{waiting:?}");
        }
    }

    #[test]
    fn a_time_without_events_is_polled_for_once() {
        for (bp_timeout_us, polls) in [(0, 0), (3_000_000_000, usize::MAX)] {
            let waiting = WaitStrategy::Bpev { bp_timeout_us: Some(bp_timeout_us) };
            assert_eq!(idle_polls_before_sleep(&mut idle_policy(waiting)), polls, "{waiting:?}");
        }
        let mut turns = idle_policy(WaitStrategy::Bpev { bp_timeout_us: Some(3_000_000_000) });
        turns.end();
        assert!(turns.was_idle(1));
        turns.woke();
        assert!(turns.was_idle(1), "woken in vain");
        turns.worked();
        assert!(!turns.was_idle(1));
    }

    #[test]
    fn sleeps_at_once_under_contention_unless_set_to_poll() {
        for (waiting, turns) in [
            (WaitStrategy::Busy, usize::MAX),
            (WaitStrategy::EventBatch, 0),
            (WaitStrategy::NaiveHybrid, 0),
            (WaitStrategy::Adaptive { max_retry: 120 }, 0),
            (WaitStrategy::Bpev { bp_timeout_us: None }, 0),
            (WaitStrategy::Bpev { bp_timeout_us: Some(3_000_000_000) }, usize::MAX),
        ] {
            let mut idle_policy = IdlePolicy::sampling(waiting, || true);
            assert_eq!(idle_polls_before_sleep(&mut idle_policy), turns, "{waiting:?}");
        }
    }

    #[test]
    fn polls_again_when_contention_ends_and_notices_when_it_begins() {
        static IS_CONTENDED: AtomicBool = AtomicBool::new(true);
        let adaptive = WaitStrategy::Adaptive { max_retry: 120 };
        let mut turns = IdlePolicy::sampling(adaptive, || IS_CONTENDED.load(Relaxed));
        assert!(turns.was_idle(1) && turns.was_idle(1));
        IS_CONTENDED.store(false, Relaxed);
        assert_eq!(idle_polls_before_sleep(&mut turns), 120);
        turns.worked();
        IS_CONTENDED.store(true, Relaxed);
        assert!(idle_polls_before_sleep(&mut turns) < TURNS_PER_SAMPLE as usize);
    }

    #[test]
    fn counts_an_iteration_by_its_poll_weight() {
        let mut turns = idle_policy(WaitStrategy::Adaptive { max_retry: 120 });
        assert!(!turns.was_idle(100) && turns.was_idle(21));
    }

    #[test]
    fn ends_idle_turns_on_request_unless_busy_polling() {
        for waiting in
            [WaitStrategy::EventBatch, WaitStrategy::NaiveHybrid, WaitStrategy::Adaptive { max_retry: 120 }]
        {
            let mut turns = idle_policy(waiting);
            turns.end();
            assert_eq!(idle_polls_before_sleep(&mut turns), 0, "{waiting:?}");
        }
        let mut busy = idle_policy(WaitStrategy::Busy);
        busy.end();
        assert!(!busy.was_idle(1));
    }

    #[test]
    fn only_adaptive_waiting_restarts_with_work() {
        for (waiting, after_work) in
            [(WaitStrategy::Adaptive { max_retry: 100 }, 100), (WaitStrategy::NaiveHybrid, 1000 - 60)]
        {
            let mut turns = idle_policy(waiting);
            for _ in 0..60 {
                assert!(!turns.was_idle(1));
            }
            turns.worked();
            assert_eq!(idle_polls_before_sleep(&mut turns), after_work, "{waiting:?}");
        }
    }
}
