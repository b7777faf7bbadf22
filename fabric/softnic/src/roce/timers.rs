//! Timers of queue pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Queue pairs by the time of their next timer expiry. A queue pair whose timer was stopped or postponed is visited
/// once without effect.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Time of the earliest entry of a queue pair.
#[derive(Clone, Copy, Default)]
pub(super) struct ScheduledTimer(Option<u64>);

impl Timers {
    /// Schedules a visit of a queue pair at `at_ns` or earlier.
    pub(super) fn schedule(&mut self, qpn: u32, scheduled: &mut ScheduledTimer, at_ns: u64) {
        if scheduled.0.is_none_or(|earliest| earliest > at_ns) {
            scheduled.0 = Some(at_ns);
            self.heap.push(Reverse((at_ns, qpn)));
        }
    }

    /// Removes and returns an entry that is due: its time and queue pair.
    pub(super) fn pop_expired(&mut self, now_ns: u64) -> Option<(u64, u32)> {
        let Reverse((at_ns, _)) = *self.heap.peek()?;
        if at_ns > now_ns { None } else { self.heap.pop().map(|Reverse(entry)| entry) }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, _))| *at_ns)
    }
}

impl ScheduledTimer {
    /// Records that an entry was removed. Returns whether it was the earliest of its queue pair, and not one that an
    /// earlier entry had replaced.
    pub(super) fn take(&mut self, at_ns: u64) -> bool {
        let is_current = self.0 == Some(at_ns);
        if is_current {
            self.0 = None;
        }
        is_current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_as_few_entries_as_it_can() {
        let (mut timers, mut scheduled) = (Timers::default(), ScheduledTimer::default());
        for at_ns in [50, 60, 70, 40] {
            timers.schedule(7, &mut scheduled, at_ns);
        }
        assert_eq!(timers.heap.len(), 2, "50, and 40 before it");
        assert_eq!((timers.next_ns(), timers.pop_expired(39)), (Some(40), None));
        assert_eq!(timers.pop_expired(45), Some((40, 7)));
        assert!(scheduled.take(40));
        assert_eq!(timers.pop_expired(99), Some((50, 7)));
        assert!(!scheduled.take(50), "replaced by that at 40");
        timers.schedule(7, &mut scheduled, 80);
        assert_eq!(timers.next_ns(), Some(80));
    }
}
