//! Outstanding sends: the part of a send queue behind a request that waits for its destination.
//!
//! Requests complete in the order in which they were posted, so later requests wait even if they have other
//! destinations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use farcall_shm::Mutex;
use farcall_verbs::{SendFlags, Wc};

use super::blocked_datagrams::SendCounters;
use super::{BlockedDatagrams, Counters};

/// A request that has not completed.
pub(super) struct OutstandingSend {
    /// Its completion.
    pub(super) completion: Wc,
    /// `true` if the completion is delivered to the program.
    pub(super) must_deliver: bool,
    /// The destination that it waits for, and its number there; `None` if it waits only for earlier requests.
    pub(super) wait: Option<(Arc<BlockedDatagrams>, u64)>,
}

impl OutstandingSend {
    fn has_ended(&self) -> bool {
        self.wait.as_ref().is_none_or(|(blocked, number)| blocked.is_released(*number))
    }
}

/// Outstanding requests, oldest first. Only the application thread adds any.
#[derive(Default)]
pub(super) struct OutstandingSends {
    count: AtomicUsize,
    queue: Mutex<VecDeque<OutstandingSend>>,
}

impl OutstandingSends {
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
    queue: MutexGuard<'a, VecDeque<OutstandingSend>>,
}

impl LockedSends<'_> {
    pub(super) fn push(&mut self, send: OutstandingSend) {
        self.queue.push_back(send);
        self.count.store(self.queue.len(), Ordering::Release);
    }

    /// Continues all requests that can make progress.
    pub(super) fn advance(&mut self, stats: &Counters) {
        let notified = self.count_useful(|blocked| blocked.advance(SendCounters::after_wait(stats)));
        stats.places_told.add(notified);
    }

    /// Requests notifications of their progress from the destinations.
    pub(super) fn request_notifications(&self, stats: &Counters) {
        stats.places_asked.add(self.count_useful(BlockedDatagrams::request_notification));
    }

    /// Calls `work` for each destination; returns how often it returned `true`.
    fn count_useful(&self, work: impl Fn(&BlockedDatagrams) -> bool) -> u64 {
        let (mut last, mut useful) = (None, 0);
        for (blocked, _) in self.queue.iter().filter_map(|send| send.wait.as_ref()) {
            if last.is_none_or(|last| !Arc::ptr_eq(last, blocked)) {
                useful += u64::from(work(blocked));
            }
            last = Some(blocked);
        }
        useful
    }

    /// Returns whether the oldest request has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.queue.front().is_some_and(OutstandingSend::has_ended)
    }

    /// Returns whether a request waits for its destination.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.iter().all(OutstandingSend::has_ended)
    }

    /// Removes and returns the oldest request if it has ended.
    pub(super) fn pop(&mut self) -> Option<OutstandingSend> {
        if !self.has_ended() {
            return None;
        }
        let send = self.queue.pop_front()?;
        self.count.store(self.queue.len(), Ordering::Release);
        Some(send)
    }

    /// Removes all requests and passes them to `end`.
    pub(super) fn end_all(&mut self, mut end: impl FnMut(OutstandingSend)) {
        self.queue.drain(..).for_each(&mut end);
        self.count.store(0, Ordering::Release);
    }
}

/// Returns whether the success of a request generates a completion.
pub(super) fn is_signalled(signal_all: bool, flags: SendFlags) -> bool {
    signal_all || flags.contains(SendFlags::SIGNALED)
}
