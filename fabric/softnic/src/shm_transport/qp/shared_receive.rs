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
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};
use std::thread::yield_now;

use farcall_shm::ring::Consumer;
use farcall_shm::{BiasedLock, Mutex};
use farcall_verbs::Wc;

use super::QpCore;
use super::matching::{MatchQuantum, Matching};
use crate::shm_transport::srq::{ReceiveWaiter, SrqCore};

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
    pub(crate) fn new(consumer: Consumer, srq: Arc<SrqCore>, waiter: Weak<dyn ReceiveWaiter>) -> Self {
        srq.attach();
        let is_offered = Arc::new(AtomicBool::new(false));
        let stored_count = Arc::new(AtomicUsize::new(0));
        let matching = Matching::new(consumer, srq.clone(), waiter, is_offered.clone(), stored_count.clone());
        let matching = BiasedLock::new(matching);
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

    /// Matches one quantum of messages and stores the completions while the application thread does not poll. Called by
    /// the service thread. The caller announces the completions.
    pub(super) fn match_for_sleeper(&self, core: &QpCore) -> MatchQuantum {
        self.with_helper_lock(|matching| matching.match_for_sleeper(core))
    }

    /// Returns whether completions are stored.
    pub(super) fn has_stored(&self) -> bool {
        self.stored_count.load(Acquire) > 0
    }

    /// Like [`SharedReceiveSide::match_for_sleeper`], called by a sender of this process. Does nothing if another
    /// thread is matching. Limited to one quantum, because other queue pairs use the same receives.
    pub(super) fn try_match_for_sleeper(&self, core: &QpCore) -> Option<MatchQuantum> {
        let _one_helper = self.helper_lock.try_lock()?;
        // SAFETY: the lock `helper_lock` is held, so `try_revoke` has one caller at a time. A sender calls it outside
        // of its send side and of all receive sides, so not from within `owner`.
        unsafe { self.matching.try_revoke(|matching| matching.match_for_sleeper(core)) }
    }

    /// Begins a new incarnation.
    pub(crate) fn renew(&self, core: &QpCore, consumer: Consumer) {
        self.with_helper_lock(|matching| {
            matching.discard(core);
            let waiter = matching.waiter().clone();
            let (is_offered, stored_count) = (self.is_offered.clone(), self.stored_count.clone());
            *matching = Matching::new(consumer, self.srq.clone(), waiter, is_offered, stored_count);
        });
    }

    /// Ends the last incarnation.
    pub(crate) fn end(&self, core: &QpCore) {
        self.with_helper_lock(|matching| matching.discard(core));
        self.srq.detach();
    }
}
