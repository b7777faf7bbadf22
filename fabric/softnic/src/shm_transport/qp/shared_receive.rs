//! Receive side of a queue pair whose receives are shared: the receiver's process matches the peer's messages with the
//! receives of the shared queue.
//!
//! The peer puts small messages into the ring and requests a receive for large ones (`qp::shared_target`). The receiver
//! accepts a message by one compare-and-swap of the count that the peer polls; the peer uses the same word to withdraw
//! abandoned messages. A message is therefore either both received and successfully sent, or neither, even if a process
//! exits or stops in between.
//!
//! Usually the thread that polls the completion queue matches messages. If the application thread does other work, the
//! service thread matches at the peer's request and stores the completions until they are polled. A peer in the same
//! process matches messages itself.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::yield_now;

use farcall_shm::ring::Consumer;
use farcall_shm::{BiasedLock, Mutex};
use farcall_verbs::Wc;

use super::QpCore;
use super::matching::{MatchQuantum, Matching};
use crate::shm_transport::cq::Source;
use crate::shm_transport::srq::SrqCore;

/// Number of spins on the lock before a yield. A helper thread holds the lock for some microseconds unless it is
/// preempted; a yield may take milliseconds where more threads are runnable than there are cores.
const SPINS_BEFORE_YIELD: u32 = 200;

/// Matching state and its lock. The thread that polls the receive completion queue enters as the owner of the
/// `BiasedLock`. The service thread, local senders and the application thread of the queue pair enter as revokers, one
/// at a time.
pub(crate) struct SharedReceiveSide {
    pub(crate) srq: Arc<SrqCore>,
    matching: BiasedLock<Matching>,
    helper_lock: Mutex<()>,
    /// `true` if the peer may write a large message, or have the service thread write it if the peer cannot reach the
    /// memory.
    is_offered: Arc<AtomicBool>,
    /// Number of completions that the matching has stored.
    stored_count: Arc<AtomicUsize>,
}

impl SharedReceiveSide {
    pub(crate) fn new(consumer: Consumer, srq: Arc<SrqCore>) -> Self {
        srq.attach();
        let is_offered = Arc::new(AtomicBool::new(false));
        let stored_count = Arc::new(AtomicUsize::new(0));
        let matching =
            BiasedLock::new(Matching::new(consumer, srq.clone(), is_offered.clone(), stored_count.clone()));
        Self { srq, matching, helper_lock: Mutex::new(()), is_offered, stored_count }
    }

    /// Returns whether the peer may write a large message.
    pub(crate) fn is_offered(&self) -> bool {
        self.is_offered.load(Acquire)
    }

    /// Delivers completions; called by the polling thread of the receive completion queue.
    pub(crate) fn poll(&self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut spins = 0;
        loop {
            // SAFETY: only the thread that polls the receive completion queue calls it, so `owner` has one caller.
            let polled = unsafe { self.matching.owner(|matching| matching.poll(core, wc)) };
            // Another thread is matching. A thread that polls because of an event raised by that thread must find its
            // completion.
            match polled {
                Some(delivered) => return delivered,
                None if spins < SPINS_BEFORE_YIELD => {
                    spins += 1;
                    spin_loop();
                }
                None => yield_now(),
            }
        }
    }

    /// Returns whether a poll may find a completion; called by the polling thread of the receive completion queue.
    pub(crate) fn may_have_completions(&self, core: &QpCore) -> bool {
        // SAFETY: only the thread that polls the receive completion queue calls it, so `owner` has one caller.
        unsafe { self.matching.owner(|matching| matching.may_have_completions(core)) }.unwrap_or(true)
    }

    fn with_helper_lock<R>(&self, work: impl FnOnce(&mut Matching) -> R) -> R {
        let _one_helper = self.helper_lock.lock();
        // SAFETY: the lock `helper_lock` is held, so `revoke` has one caller at a time, and no code inside `owner`
        // calls `with_helper_lock`.
        unsafe { self.matching.revoke(work) }
    }

    /// Matches one quantum of messages and stores the completions while the application thread does not poll. Returns
    /// whether more messages may wait. Called by the service thread.
    pub(crate) fn match_for_sleeper(&self, core: &QpCore) -> bool {
        let quantum = self.with_helper_lock(|matching| matching.match_for_sleeper(core));
        self.announce(core, &quantum);
        quantum.has_more
    }

    /// Like [`SharedReceiveSide::match_for_sleeper`], called by a sender of this process. Does nothing if another
    /// thread is matching. Limited to one quantum, because other queue pairs use the same receives.
    pub(crate) fn try_match_for_sleeper(&self, core: &QpCore) {
        let Some(one_helper) = self.helper_lock.try_lock() else { return };
        // SAFETY: the lock `helper_lock` is held, so `try_revoke` has one caller at a time. A sender calls it outside
        // of its send side and of all receive sides, so not from within `owner`.
        let quantum = unsafe { self.matching.try_revoke(|matching| matching.match_for_sleeper(core)) };
        drop(one_helper);
        if let Some(quantum) = quantum {
            self.announce(core, &quantum);
        }
    }

    /// Announces the completions of a quantum that a thread other than the polling thread matched.
    fn announce(&self, core: &QpCore, quantum: &MatchQuantum) {
        if quantum.has_completed {
            // The peer accepted this side's message before it sent its response. The event of the send therefore comes
            // first, as on devices, whose acknowledgements precede responses.
            core.service_sends();
            core.announce_receives(quantum.solicited, || self.stored_count.load(Acquire) > 0);
        }
    }

    /// Begins a new incarnation.
    pub(crate) fn renew(&self, core: &QpCore, consumer: Consumer) {
        self.with_helper_lock(|matching| {
            matching.discard(core);
            *matching =
                Matching::new(consumer, self.srq.clone(), self.is_offered.clone(), self.stored_count.clone());
        });
    }

    /// Ends the last incarnation.
    pub(crate) fn end(&self, core: &QpCore) {
        self.with_helper_lock(|matching| matching.discard(core));
        self.srq.detach();
    }
}

/// A queue pair with shared receives attached to a completion queue, and the kinds of completion that it delivers
/// there.
pub(crate) struct SharedRecvSource {
    qp: Arc<QpCore>,
    sends: bool,
    receives: bool,
}

impl SharedRecvSource {
    pub(crate) fn new(qp: &Arc<QpCore>, sends: bool, receives: bool) -> Arc<Self> {
        Arc::new(Self { qp: qp.clone(), sends, receives })
    }

    fn receive_side(&self) -> Option<&SharedReceiveSide> {
        self.qp.shared().filter(|_| self.receives)
    }
}

impl Source for SharedRecvSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        let delivered = self.qp.poll(self.sends, false, wc);
        delivered + self.receive_side().map_or(0, |shared| shared.poll(&self.qp, &mut wc[delivered..]))
    }

    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        self.qp.poll_failures(self.sends, false, wc)
    }

    fn may_have_completions(&self) -> bool {
        self.qp.may_have_completions(self.sends, false)
            || self.receive_side().is_some_and(|shared| shared.may_have_completions(&self.qp))
    }

    fn service_for_sleeper(&self) -> bool {
        if self.sends {
            self.qp.service_sends();
        }
        self.receive_side().is_some_and(|shared| shared.match_for_sleeper(&self.qp))
    }
}
