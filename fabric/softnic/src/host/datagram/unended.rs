//! The part of a send queue that stands still, because its oldest request waits for its destination.
//!
//! Requests end in the order in which they were posted, so what is posted behind one that waits ends behind it,
//! wherever it goes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use farcall_shm::Mutex;
use farcall_verbs::{SendFlags, Wc};

use super::pending::Tally;
use super::{Counters, Pending};

/// A request that has not ended for its sender.
pub(super) struct UnendedSend {
    /// How it ends.
    pub(super) completion: Wc,
    /// Whether that makes a completion for the program.
    pub(super) is_told: bool,
    /// What it waits for, and its number there; `None`: only for those before it.
    pub(super) wait: Option<(Arc<Pending>, u64)>,
}

impl UnendedSend {
    fn is_over(&self) -> bool {
        self.wait.as_ref().is_none_or(|(pending, number)| pending.is_released(*number))
    }
}

/// The requests, oldest first. Nobody but the owner adds any.
#[derive(Default)]
pub(super) struct UnendedSends {
    count: AtomicUsize,
    queue: Mutex<VecDeque<UnendedSend>>,
}

impl UnendedSends {
    /// How many there are; exact for the owner as an upper bound.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> LockedSends<'_> {
        let queue = self.queue.lock();
        LockedSends { count: &self.count, queue }
    }
}

/// The requests in the hands of one thread.
pub(super) struct LockedSends<'a> {
    count: &'a AtomicUsize,
    queue: MutexGuard<'a, VecDeque<UnendedSend>>,
}

impl LockedSends<'_> {
    pub(super) fn push(&mut self, held: UnendedSend) {
        self.queue.push_back(held);
        self.count.store(self.queue.len(), Ordering::Release);
    }

    /// Lets everything go on that can.
    pub(super) fn advance(&mut self, stats: &Counters) {
        let told = self.visit(|pending| pending.advance(Tally::after_wait(stats)));
        stats.places_told.add(told);
    }

    /// Has the destinations tell when they take something.
    pub(super) fn ask(&self, stats: &Counters) {
        stats.places_asked.add(self.visit(Pending::ask));
    }

    /// Does something to all that is waited for; returns how often that was of use.
    fn visit(&self, work: impl Fn(&Pending) -> bool) -> u64 {
        let (mut last, mut useful) = (None, 0);
        for (pending, _) in self.queue.iter().filter_map(|held| held.wait.as_ref()) {
            if last.is_none_or(|last| !Arc::ptr_eq(last, pending)) {
                useful += u64::from(work(pending));
            }
            last = Some(pending);
        }
        useful
    }

    /// Whether the oldest is over.
    pub(super) fn is_over(&self) -> bool {
        self.queue.front().is_some_and(UnendedSend::is_over)
    }

    /// Whether one of them waits for its destination.
    pub(super) fn waits(&self) -> bool {
        !self.queue.iter().all(UnendedSend::is_over)
    }

    /// The oldest, if it is over.
    pub(super) fn pop(&mut self) -> Option<UnendedSend> {
        if !self.is_over() {
            return None;
        }
        let held = self.queue.pop_front()?;
        self.count.store(self.queue.len(), Ordering::Release);
        Some(held)
    }

    /// Ends them all, as `end` says.
    pub(super) fn end_all(&mut self, mut end: impl FnMut(UnendedSend)) {
        self.queue.drain(..).for_each(&mut end);
        self.count.store(0, Ordering::Release);
    }
}

/// Whether a request's success makes a completion.
pub(super) fn is_signalled(signal_all: bool, flags: SendFlags) -> bool {
    signal_all || flags.contains(SendFlags::SIGNALED)
}
