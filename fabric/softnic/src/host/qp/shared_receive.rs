//! The receive side of a queue pair whose receives are shared: what its peer sends meets the receives of the shared
//! queue here, at the owner.
//!
//! The peer puts small messages into the ring and asks for a place for large ones (`qp::shared_target`). A message is
//! accepted by one compare and exchange of the count that the peer watches; the peer takes the same word to withdraw
//! what it gives up. So a message is either received and sent successfully, or neither, whoever dies or stops in
//! between.
//!
//! Usually the thread that polls the completion queue matches. For owners that do something else the service thread
//! does, asked by the peer, and keeps the completions until they are polled; a peer in the same process matches by itself.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::yield_now;

use farcall_shm::ring::Consumer;
use farcall_shm::{BiasedLock, Mutex};
use farcall_verbs::Wc;

use super::QpCore;
use super::matching::{Matching, Turn};
use crate::host::cq::Source;
use crate::host::srq::SrqCore;

/// A visit takes some microseconds, unless the visitor is kept from running; a yield may take milliseconds where more
/// threads are runnable than there are cores.
const SPINS_BEFORE_YIELD: u32 = 200;

/// The matching, and who may do it: the poller of the receive completion queue is its resident, the service thread and
/// the owner of the queue pair are visitors.
pub(crate) struct SharedSide {
    pub(crate) srq: Arc<SrqCore>,
    matching: BiasedLock<Matching>,
    visits: Mutex<()>,
    /// Whether the peer may have a large message placed: by us, if it cannot reach the memory itself.
    is_offered: Arc<AtomicBool>,
    /// How many completions the matching has stored.
    stored_count: Arc<AtomicUsize>,
}

impl SharedSide {
    pub(crate) fn new(consumer: Consumer, srq: Arc<SrqCore>) -> Self {
        srq.attach();
        let is_offered = Arc::new(AtomicBool::new(false));
        let stored_count = Arc::new(AtomicUsize::new(0));
        let matching =
            BiasedLock::new(Matching::new(consumer, srq.clone(), is_offered.clone(), stored_count.clone()));
        Self { srq, matching, visits: Mutex::new(()), is_offered, stored_count }
    }

    /// Whether the peer may have a large message placed.
    pub(crate) fn is_offered(&self) -> bool {
        self.is_offered.load(Acquire)
    }

    /// Delivers what has come; called by the owner of the receive completion queue.
    pub(crate) fn poll(&self, core: &QpCore, wc: &mut [Wc]) -> usize {
        let mut spins = 0;
        loop {
            // SAFETY: that owner is the resident.
            let polled = unsafe { self.matching.owner(|matching| matching.poll(core, wc)) };
            // A visitor is at it. Whoever comes for an event that he made must not leave without its completion.
            match polled {
                Some(taken) => return taken,
                None if spins < SPINS_BEFORE_YIELD => {
                    spins += 1;
                    spin_loop();
                }
                None => yield_now(),
            }
        }
    }

    /// Whether a poll may find something; called by the same.
    pub(crate) fn has_something(&self, core: &QpCore) -> bool {
        // SAFETY: as in `poll`.
        unsafe { self.matching.owner(|matching| matching.has_something(core)) }.unwrap_or(true)
    }

    fn visit<R>(&self, work: impl FnOnce(&mut Matching) -> R) -> R {
        let _one_at_a_time = self.visits.lock();
        // SAFETY: one visitor at a time by the lock; nothing that a resident does comes here.
        unsafe { self.matching.revoke(work) }
    }

    /// Matches what has come and keeps the completions, for an owner that does not poll; returns whether one turn was
    /// not enough. For the service thread.
    pub(crate) fn match_ahead(&self, core: &QpCore) -> bool {
        let turn = self.visit(|matching| matching.match_ahead(core));
        self.announce(core, &turn);
        turn.has_more
    }

    /// As [`SharedSide::match_ahead`], by a sender of this process; does nothing while another thread is at it. One turn:
    /// receives are shared with others.
    pub(crate) fn try_match_ahead(&self, core: &QpCore) {
        let Some(one_at_a_time) = self.visits.try_lock() else { return };
        // SAFETY: one visitor at a time by the lock; a sender comes here outside of its send side and of all receive
        // sides.
        let turn = unsafe { self.matching.try_revoke(|matching| matching.match_ahead(core)) };
        drop(one_at_a_time);
        if let Some(turn) = turn {
            self.announce(core, &turn);
        }
    }

    /// After a turn that the owner did not make: tells the owner of what has completed.
    fn announce(&self, core: &QpCore, turn: &Turn) {
        if turn.has_completed {
            // The peer accepted what it answers before it answered: the event of our send comes first, as on devices,
            // whose acknowledgements precede it.
            core.look_after_sends();
            core.announce_receives(turn.solicited, || self.stored_count.load(Acquire) > 0);
        }
    }

    /// Begins a new life.
    pub(crate) fn renew(&self, core: &QpCore, consumer: Consumer) {
        self.visit(|matching| {
            matching.discard(core);
            *matching =
                Matching::new(consumer, self.srq.clone(), self.is_offered.clone(), self.stored_count.clone());
        });
    }

    /// Ends the last life.
    pub(crate) fn end(&self, core: &QpCore) {
        self.visit(|matching| matching.discard(core));
        self.srq.detach();
    }
}

/// A queue pair with shared receives at a completion queue, and which of its completions come there.
pub(crate) struct Polled {
    qp: Arc<QpCore>,
    sends: bool,
    receives: bool,
}

impl Polled {
    pub(crate) fn new(qp: &Arc<QpCore>, sends: bool, receives: bool) -> Arc<Self> {
        Arc::new(Self { qp: qp.clone(), sends, receives })
    }

    fn receive_side(&self) -> Option<&SharedSide> {
        self.qp.shared().filter(|_| self.receives)
    }
}

impl Source for Polled {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        let taken = self.qp.poll(self.sends, false, wc);
        taken + self.receive_side().map_or(0, |shared| shared.poll(&self.qp, &mut wc[taken..]))
    }

    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        self.qp.poll_failures(self.sends, false, wc)
    }

    fn has_something(&self) -> bool {
        self.qp.has_something(self.sends, false)
            || self.receive_side().is_some_and(|shared| shared.has_something(&self.qp))
    }

    fn look_after(&self) -> bool {
        if self.sends {
            self.qp.look_after_sends();
        }
        self.receive_side().is_some_and(|shared| shared.match_ahead(&self.qp))
    }
}
