//! Outstanding sends: the part of a send queue behind a request that waits for its destination.
//!
//! Requests complete in the order in which they were posted, so later requests wait even if they have other
//! destinations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use farcall_shm::Mutex;
use farcall_verbs::{SendFlags, Wc};

use super::blocked_datagrams::Tally;
use super::{Counters, Pending};

/// A request that has not completed.
pub(super) struct UnendedSend {
    /// Its completion.
    pub(super) completion: Wc,
    /// `true` if the completion is delivered to the program.
    pub(super) is_told: bool,
    /// The destination that it waits for, and its number there; `None` if it waits only for earlier requests.
    pub(super) wait: Option<(Arc<Pending>, u64)>,
}

impl UnendedSend {
    fn is_over(&self) -> bool {
        self.wait.as_ref().is_none_or(|(pending, number)| pending.is_released(*number))
    }
}

/// Outstanding requests, oldest first. Only the application thread adds any.
#[derive(Default)]
pub(super) struct UnendedSends {
    count: AtomicUsize,
    queue: Mutex<VecDeque<UnendedSend>>,
}

impl UnendedSends {
    /// Returns the number of requests. For the application thread it is an upper bound.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> LockedSends<'_> {
        let queue = self.queue.lock();
        LockedSends { count: &self.count, queue }
    }
}

/// Outstanding requests, locked by one thread.
pub(super) struct LockedSends<'a> {
    count: &'a AtomicUsize,
    queue: MutexGuard<'a, VecDeque<UnendedSend>>,
}

impl LockedSends<'_> {
    pub(super) fn push(&mut self, held: UnendedSend) {
        self.queue.push_back(held);
        self.count.store(self.queue.len(), Ordering::Release);
    }

    /// Continues all requests that can make progress.
    pub(super) fn advance(&mut self, stats: &Counters) {
        let told = self.visit(|pending| pending.advance(Tally::after_wait(stats)));
        stats.places_told.add(told);
    }

    /// Requests notifications of their progress from the destinations.
    pub(super) fn ask(&self, stats: &Counters) {
        stats.places_asked.add(self.visit(Pending::ask));
    }

    /// Calls `work` for each destination; returns how often it returned `true`.
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

    /// Returns whether the oldest request has ended.
    pub(super) fn is_over(&self) -> bool {
        self.queue.front().is_some_and(UnendedSend::is_over)
    }

    /// Returns whether a request waits for its destination.
    pub(super) fn waits(&self) -> bool {
        !self.queue.iter().all(UnendedSend::is_over)
    }

    /// Removes and returns the oldest request if it has ended.
    pub(super) fn pop(&mut self) -> Option<UnendedSend> {
        if !self.is_over() {
            return None;
        }
        let held = self.queue.pop_front()?;
        self.count.store(self.queue.len(), Ordering::Release);
        Some(held)
    }

    /// Removes all requests and passes them to `end`.
    pub(super) fn end_all(&mut self, mut end: impl FnMut(UnendedSend)) {
        self.queue.drain(..).for_each(&mut end);
        self.count.store(0, Ordering::Release);
    }
}

/// Returns whether the success of a request generates a completion.
pub(super) fn is_signalled(signal_all: bool, flags: SendFlags) -> bool {
    signal_all || flags.contains(SendFlags::SIGNALED)
}
