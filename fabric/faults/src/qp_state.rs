//! Queue pair state that completion queues use.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use farcall_verbs::{Wc, WcOpcode, WcStatus};

/// Work queue of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkQueue {
    Send,
    Receive,
}

/// Fault state of a queue pair, shared by its application thread and its completion queues.
pub(crate) struct FaultyQpState {
    /// Index of the queue pair in the process's order of creation.
    pub(crate) index: u64,
    /// `WcStatus` of the request that broke the connection, until its completion is staged; 0 if there is none.
    failure: AtomicU32,
    /// Earliest time at which sends complete.
    not_before_ns: AtomicU64,
    /// Time at which the completion of the last failure was ready; flushes are not ready before it.
    failed_ns: AtomicU64,
    /// Time at which the last completion of each work queue was ready, and number of completions.
    ready_ns: [AtomicU64; 2],
    completed: [AtomicU64; 2],
    /// One entry for each outstanding signalled send, oldest first: the original opcode if another request was posted
    /// in its place. Only for transports on which requests are replaced.
    substitutes: Option<Mutex<VecDeque<Option<WcOpcode>>>>,
}

impl FaultyQpState {
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

    /// Marks the next request to be flushed as the failed one, with its status.
    pub(crate) fn fails_with(&self, status: WcStatus) {
        self.failure.store(status.0, Ordering::Release);
    }

    /// Delays the sends that complete from now on until `ns`.
    pub(crate) fn delay_sends_until(&self, ns: u64) {
        self.not_before_ns.fetch_max(ns, Ordering::AcqRel);
    }

    /// Records a posted signalled send. `instead_of` is the opcode that its completion must show if it replaces another
    /// request.
    pub(crate) fn posted(&self, instead_of: Option<WcOpcode>) {
        if let Some(substitutes) = &self.substitutes {
            substitutes.lock().unwrap_or_else(PoisonError::into_inner).push_back(instead_of);
        }
    }

    /// Resets the state together with the queue pair.
    pub(crate) fn reset(&self) {
        self.failure.store(0, Ordering::Release);
        self.not_before_ns.store(0, Ordering::Release);
        self.failed_ns.store(0, Ordering::Release);
        if let Some(substitutes) = &self.substitutes {
            substitutes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Changes a completion into the one that the program must see.
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

    /// Counts a completion of a work queue and returns the number of those before it.
    pub(crate) fn count(&self, queue: WorkQueue) -> u64 {
        self.completed[queue as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// Returns when a completion that arrives at `ns` is ready: not before the earlier completions of its work queue,
    /// and, if it is a flush, not before the failure that caused it, in either work queue.
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
        // Only one completion queue stages the completions of a work queue, under its lock.
        let ready_ns = ns.max(self.ready_ns[queue as usize].fetch_max(ns, Ordering::Relaxed));
        if !status.is_success() && status != WcStatus::WR_FLUSH_ERR {
            self.failed_ns.fetch_max(ready_ns, Ordering::AcqRel);
        }
        ready_ns
    }
}

/// The fault states of an opened device's queue pairs by queue pair number.
#[derive(Default)]
pub(crate) struct FaultyQpStates(RwLock<HashMap<u32, Arc<FaultyQpState>>>);

impl FaultyQpStates {
    pub(crate) fn insert(&self, qp_num: u32, qp_state: &Arc<FaultyQpState>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(qp_num, qp_state.clone());
    }

    pub(crate) fn remove(&self, qp_num: u32) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&qp_num);
    }

    pub(crate) fn get(&self, qp_num: u32) -> Option<Arc<FaultyQpState>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&qp_num).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_the_failure_in_the_first_flushed_send() {
        let qp_state = FaultyQpState::new(0, false);
        let mut wc = Wc::ended(1, 2, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
        qp_state.fails_with(WcStatus::RETRY_EXC_ERR);
        qp_state.translate(&mut wc, WorkQueue::Receive);
        assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR, "receives do not tell it");
        qp_state.translate(&mut wc, WorkQueue::Send);
        assert_eq!(wc.status, WcStatus::RETRY_EXC_ERR);
        wc.status = WcStatus::WR_FLUSH_ERR;
        qp_state.translate(&mut wc, WorkQueue::Send);
        assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
    }

    #[test]
    fn completions_of_a_side_are_ready_in_their_order() {
        let qp_state = FaultyQpState::new(0, false);
        let ready_ns = |queue, ns| qp_state.ready_ns(queue, WcStatus::SUCCESS, ns);
        assert_eq!(ready_ns(WorkQueue::Send, 100), 100);
        assert_eq!(ready_ns(WorkQueue::Send, 90), 100);
        qp_state.delay_sends_until(500);
        assert_eq!((ready_ns(WorkQueue::Receive, 90), ready_ns(WorkQueue::Send, 110)), (90, 500));
        assert_eq!(ready_ns(WorkQueue::Send, 400), 500);
    }

    #[test]
    fn flushes_are_ready_after_the_failure_that_is_their_cause() {
        let qp_state = FaultyQpState::new(0, false);
        let flushed = |ns| qp_state.ready_ns(WorkQueue::Receive, WcStatus::WR_FLUSH_ERR, ns);
        assert_eq!(flushed(10), 10, "the program has moved the pair to the error state");
        assert_eq!(qp_state.ready_ns(WorkQueue::Send, WcStatus::REM_OP_ERR, 100), 100);
        assert_eq!((flushed(20), flushed(110)), (100, 110));
        assert_eq!(qp_state.ready_ns(WorkQueue::Send, WcStatus::RETRY_EXC_ERR, 900), 900);
        qp_state.reset();
        assert_eq!(flushed(120), 120, "of its next life");
        let other = FaultyQpState::new(1, false);
        assert_eq!(other.ready_ns(WorkQueue::Receive, WcStatus::LOC_PROT_ERR, 100), 100);
        assert_eq!(other.ready_ns(WorkQueue::Send, WcStatus::WR_FLUSH_ERR, 20), 100);
        assert_eq!(other.ready_ns(WorkQueue::Receive, WcStatus::SUCCESS, 30), 100);
    }

    #[test]
    fn substitutes_complete_like_the_original_request() {
        let qp_state = FaultyQpState::new(0, true);
        qp_state.posted(None);
        qp_state.posted(Some(WcOpcode::SEND));
        let seen: Vec<WcOpcode> = (0..2)
            .map(|wr_id| {
                let mut wc = Wc::ended(wr_id, 2, WcOpcode::RDMA_WRITE, WcStatus::SUCCESS);
                qp_state.translate(&mut wc, WorkQueue::Send);
                wc.opcode
            })
            .collect();
        assert_eq!(seen, [WcOpcode::RDMA_WRITE, WcOpcode::SEND]);
    }
}
