//! When to poll on and when to sleep.

use farcall_link::Waiting;

/// What to do after an idle turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Poll again at once.
    Poll,
    /// Let others run, then poll again.
    Yield,
    /// Arm, look once more, sleep.
    Sleep,
}

/// Counts idle turns for a way of waiting.
#[derive(Clone, Debug)]
pub struct Pacer {
    waiting: Waiting,
    idle_turns: u32,
}

/// Polls of the naive hybrid before it sleeps, counted from its last sleep and not from the last work: that is what the
/// adaptive way (RDMAbox, algorithm 3) improves on.
const NAIVE_POLLS: u32 = 1_000;

impl Pacer {
    /// Starts without idle turns.
    pub const fn new(waiting: Waiting) -> Self {
        Self { waiting, idle_turns: 0 }
    }

    /// A turn had work.
    #[inline]
    pub fn worked(&mut self) {
        if !matches!(self.waiting, Waiting::NaiveHybrid) {
            self.idle_turns = 0;
        }
    }

    /// A turn had none.
    #[inline]
    pub fn idle(&mut self) -> Pace {
        self.idle_turns = self.idle_turns.saturating_add(1);
        let sleeps_after = match self.waiting {
            Waiting::Busy => return Pace::Poll,
            Waiting::TimeShared => return Pace::Yield,
            Waiting::NaiveHybrid => NAIVE_POLLS,
            Waiting::Adaptive { max_retry, .. } => max_retry,
            // One thread that drives one endpoint has nobody to share with: it sleeps like the others.
            _ => 0,
        };
        if self.idle_turns > sleeps_after { Pace::Sleep } else { Pace::Poll }
    }

    /// It slept.
    pub fn woke(&mut self) {
        self.idle_turns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_turns_before_sleep(pacer: &mut Pacer) -> usize {
        (0..10_000).position(|_| pacer.idle() == Pace::Sleep).unwrap_or(usize::MAX)
    }

    #[test]
    fn each_way_of_waiting_sleeps_when_it_says() {
        let adaptive = Waiting::Adaptive { max_poll_wc: 16, max_retry: 120 };
        for (waiting, turns) in [
            (Waiting::Busy, usize::MAX),
            (Waiting::TimeShared, usize::MAX),
            (Waiting::Event, 0),
            (Waiting::EventBatch, 0),
            (Waiting::NaiveHybrid, 1000),
            (adaptive, 120),
        ] {
            assert_eq!(idle_turns_before_sleep(&mut Pacer::new(waiting)), turns, "{waiting:?}");
        }
    }

    #[test]
    fn only_adaptive_waiting_begins_anew_with_work() {
        for (waiting, after_work) in
            [(Waiting::Adaptive { max_poll_wc: 16, max_retry: 100 }, 100), (Waiting::NaiveHybrid, 1000 - 60)]
        {
            let mut pacer = Pacer::new(waiting);
            for _ in 0..60 {
                assert_eq!(pacer.idle(), Pace::Poll);
            }
            pacer.worked();
            assert_eq!(idle_turns_before_sleep(&mut pacer), after_work, "{waiting:?}");
        }
    }
}
