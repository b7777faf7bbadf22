//! What completion queues know of a queue pair.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use farcall_verbs::{Wc, WcOpcode, WcStatus};

/// Which of a pair's completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkQueue {
    Send,
    Receive,
}

/// A queue pair, shared by its owner and its completion queues.
pub(crate) struct Pair {
    /// Its number in the order in which the process made its queue pairs.
    pub(crate) index: u64,
    /// How the request failed that broke the connection, until its completion is seen: `WcStatus`, 0 if none did.
    failure: AtomicU32,
    /// Sends complete no earlier.
    not_before_ns: AtomicU64,
    /// When the completion of the last failure was ready, which flushes follow.
    failed_ns: AtomicU64,
    /// When the last completion of each work queue was ready, and how many there were.
    ready_ns: [AtomicU64; 2],
    completed: [AtomicU64; 2],
    /// Of signalled sends that were posted, oldest first: what they were, if something else was posted in their place.
    /// Only for transports where that is done.
    substitutes: Option<Mutex<VecDeque<Option<WcOpcode>>>>,
}

impl Pair {
    pub(crate) fn new(index: u64, has_substitutes: bool) -> Self {
        Self {
            index,
            failure: AtomicU32::new(0),
            not_before_ns: AtomicU64::new(0),
            failed_ns: AtomicU64::new(0),
            ready_ns: Default::default(),
            completed: Default::default(),
            substitutes: has_substitutes.then(Mutex::default),
        }
    }

    /// The next request to be flushed is the one that failed, and how.
    pub(crate) fn fails_with(&self, status: WcStatus) {
        self.failure.store(status.0, Ordering::Release);
    }

    /// Sends that complete from now on do it no earlier than that.
    pub(crate) fn sends_not_before(&self, ns: u64) {
        self.not_before_ns.fetch_max(ns, Ordering::AcqRel);
    }

    /// A signalled send was posted; `instead_of`: what it is to look like.
    pub(crate) fn posted(&self, instead_of: Option<WcOpcode>) {
        if let Some(substitutes) = &self.substitutes {
            substitutes.lock().unwrap_or_else(PoisonError::into_inner).push_back(instead_of);
        }
    }

    /// The pair begins anew.
    pub(crate) fn reset(&self) {
        self.failure.store(0, Ordering::Release);
        self.not_before_ns.store(0, Ordering::Release);
        self.failed_ns.store(0, Ordering::Release);
        if let Some(substitutes) = &self.substitutes {
            substitutes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Makes a completion what the program is to see.
    pub(crate) fn translate(&self, wc: &mut Wc, queue: WorkQueue) {
        if queue == WorkQueue::Receive {
            return;
        }
        if wc.status == WcStatus::WR_FLUSH_ERR {
            let failure = self.failure.swap(0, Ordering::AcqRel);
            if failure != 0 {
                wc.status = WcStatus(failure);
            }
        } else if wc.status.is_success()
            && let Some(substitutes) = &self.substitutes
            && let Some(Some(opcode)) = substitutes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
        {
            wc.opcode = opcode;
        }
    }

    /// How many completions of a work queue there were before this one.
    pub(crate) fn count(&self, queue: WorkQueue) -> u64 {
        self.completed[queue as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// Returns when a completion is ready that would be at `ns`: not before those of its work queue that came before it,
    /// and, if it is a flush, not before the failure that is its cause, whichever work queue that was in.
    pub(crate) fn ready_ns(&self, queue: WorkQueue, status: WcStatus, ns: u64) -> u64 {
        let not_before_ns = match queue {
            WorkQueue::Send => self.not_before_ns.load(Ordering::Acquire),
            WorkQueue::Receive => 0,
        };
        let cause_ns = match status {
            WcStatus::WR_FLUSH_ERR => self.failed_ns.load(Ordering::Acquire),
            _ => 0,
        };
        let ns = ns.max(not_before_ns).max(cause_ns);
        // One queue stages a work queue's completions, under its lock.
        let ready_ns = ns.max(self.ready_ns[queue as usize].fetch_max(ns, Ordering::Relaxed));
        if !status.is_success() && status != WcStatus::WR_FLUSH_ERR {
            self.failed_ns.fetch_max(ready_ns, Ordering::AcqRel);
        }
        ready_ns
    }
}

/// The pairs of an opened device by their numbers.
#[derive(Default)]
pub(crate) struct Pairs(RwLock<HashMap<u32, Arc<Pair>>>);

impl Pairs {
    pub(crate) fn insert(&self, qp_num: u32, pair: &Arc<Pair>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(qp_num, pair.clone());
    }

    pub(crate) fn remove(&self, qp_num: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&qp_num);
    }

    pub(crate) fn get(&self, qp_num: u32) -> Option<Arc<Pair>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&qp_num).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_flush_tells_the_failure_and_the_others_are_flushes() {
        let pair = Pair::new(0, false);
        let mut wc = Wc::ended(1, 2, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
        pair.fails_with(WcStatus::RETRY_EXC_ERR);
        pair.translate(&mut wc, WorkQueue::Receive);
        assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR, "receives do not tell it");
        pair.translate(&mut wc, WorkQueue::Send);
        assert_eq!(wc.status, WcStatus::RETRY_EXC_ERR);
        wc.status = WcStatus::WR_FLUSH_ERR;
        pair.translate(&mut wc, WorkQueue::Send);
        assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
    }

    #[test]
    fn completions_of_a_side_are_ready_in_their_order() {
        let pair = Pair::new(0, false);
        let ready_ns = |queue, ns| pair.ready_ns(queue, WcStatus::SUCCESS, ns);
        assert_eq!(ready_ns(WorkQueue::Send, 100), 100);
        assert_eq!(ready_ns(WorkQueue::Send, 90), 100);
        pair.sends_not_before(500);
        assert_eq!((ready_ns(WorkQueue::Receive, 90), ready_ns(WorkQueue::Send, 110)), (90, 500));
        assert_eq!(ready_ns(WorkQueue::Send, 400), 500);
    }

    #[test]
    fn flushes_are_ready_after_the_failure_that_is_their_cause() {
        let pair = Pair::new(0, false);
        let flushed = |ns| pair.ready_ns(WorkQueue::Receive, WcStatus::WR_FLUSH_ERR, ns);
        assert_eq!(flushed(10), 10, "the program has moved the pair to the error state");
        assert_eq!(pair.ready_ns(WorkQueue::Send, WcStatus::REM_OP_ERR, 100), 100);
        assert_eq!((flushed(20), flushed(110)), (100, 110));
        assert_eq!(pair.ready_ns(WorkQueue::Send, WcStatus::RETRY_EXC_ERR, 900), 900);
        pair.reset();
        assert_eq!(flushed(120), 120, "of its next life");
        let other = Pair::new(1, false);
        assert_eq!(other.ready_ns(WorkQueue::Receive, WcStatus::LOC_PROT_ERR, 100), 100);
        assert_eq!(other.ready_ns(WorkQueue::Send, WcStatus::WR_FLUSH_ERR, 20), 100);
        assert_eq!(other.ready_ns(WorkQueue::Receive, WcStatus::SUCCESS, 30), 100);
    }

    #[test]
    fn substitutes_look_like_what_was_asked_for() {
        let pair = Pair::new(0, true);
        pair.posted(None);
        pair.posted(Some(WcOpcode::SEND));
        let seen: Vec<WcOpcode> = (0..2)
            .map(|wr_id| {
                let mut wc = Wc::ended(wr_id, 2, WcOpcode::RDMA_WRITE, WcStatus::SUCCESS);
                pair.translate(&mut wc, WorkQueue::Send);
                wc.opcode
            })
            .collect();
        assert_eq!(seen, [WcOpcode::RDMA_WRITE, WcOpcode::SEND]);
    }
}
