//! A connected queue pair: its two sides, and the state that they share.

use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::{self, DisableInChild};
use farcall_shm::ring::{Consumer, Layout};
use farcall_shm::{BiasedLock, PendingLock, SharedMem, credit_request, prefetch};
use farcall_verbs::{QpState, Result, Wc};

use super::inbound::InboundGrant;
use super::initiator::Initiator;
use super::matching::MatchQuantum;
use super::receive::RecvSide;
use super::send::SendSide;
use super::shared_receive::SharedReceiveSide;
use super::{Connected, QpCore, RecvQueue};
use crate::process::{ServiceWork, is_service_thread};
use crate::shm_transport::cq::ServicedPair;
use crate::shm_transport::srq::{ReceiveWaiter, SrqCore};
use crate::shm_transport::state::StateEvent;
use crate::shm_transport::{CqSlot, QpResources, ShmTransport};

/// A connected queue pair.
///
/// The fields are ordered by use, so that each operation touches few cache lines. A process that uses a thousand queue
/// pairs in turn misses on each line. Every poll reads three lines: the first one, and the two before `send`. The
/// second has the messages and their counters. Posting uses it, too, and continues in [`SendSide`].
#[repr(C, align(64))]
pub(crate) struct QueuePair {
    recv: BiasedLock<RecvSide>,
    /// State that the sides share; a queue pair dereferences to it.
    core: QpCore,
    pub(crate) send: PendingLock<SendSide>,
    /// Replaces `recv` if the receives are shared.
    shared: Option<SharedReceiveSide>,
    /// Registry of the queue pairs of this process.
    pub(crate) registry: Arc<ShmTransport>,
}

const _: () = {
    const LINE_BYTES: usize = 64;
    const LAST_LINE: usize = offset_of!(QueuePair, send) / LINE_BYTES;
    assert!(
        offset_of!(QueuePair, core.stats) / LINE_BYTES == 1
            && offset_of!(QueuePair, core.shm) / LINE_BYTES == 1
    );
    assert!(offset_of!(QueuePair, core.recv_slot) / LINE_BYTES == LAST_LINE - 1);
    assert!(offset_of!(QueuePair, core.completions) / LINE_BYTES == LAST_LINE - 1);
    // The last line ends with the start of the send side, whose lock polls try and posts acquire.
    assert!(offset_of!(QueuePair, core.send_slot) / LINE_BYTES == LAST_LINE);
    assert!(offset_of!(QueuePair, core.state) / LINE_BYTES == LAST_LINE);
    assert!(offset_of!(QueuePair, core.cap) / LINE_BYTES == LAST_LINE);
    assert!(offset_of!(SendSide, connection) < LINE_BYTES);
};

impl Deref for QueuePair {
    type Target = QpCore;

    #[inline]
    fn deref(&self) -> &QpCore {
        &self.core
    }
}

impl ServiceWork for QueuePair {
    fn is_listed(&self) -> &AtomicBool {
        &self.is_listed
    }

    fn is_waiting(&self) -> bool {
        self.send_waits.load(Ordering::Acquire)
            || self.flush_waits.load(Ordering::Acquire)
            || self.ready_handshake.lock().is_some()
    }

    fn app_poll_count(&self) -> Option<u32> {
        let is_alone = self.flush_waits.load(Ordering::Acquire) || self.ready_handshake.lock().is_some();
        (!is_alone).then(|| self.app_poll_count.load(Ordering::Relaxed))
    }

    fn wait_count(&self) -> u64 {
        self.stats.waits.get()
    }

    fn resume(&self) {
        if self.ready_handshake.lock().is_some() {
            self.notify_ready();
        }
        // Completions are announced where they occur. The application thread is not woken otherwise.
        self.progress_sends(false);
        self.continue_receives();
        if self.flush_waits.load(Ordering::Acquire) && self.is_quiesced() {
            self.announce_locally(true);
        }
    }
}

impl ReceiveWaiter for QueuePair {
    fn on_receive_posted(&self, message: u64) {
        self.core.on_receive_posted(message);
        self.check_receives();
    }
}

impl ServicedPair for QueuePair {
    fn service_sends(&self) {
        self.resume_for_sleeper();
    }
}

impl QueuePair {
    /// Creates a queue pair. Returns it with its receive queue and its inbound segment.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the inbound segment.
    pub(crate) fn new(
        qpn: u32,
        transport: Connected,
        parts: QpResources,
        registry: &Arc<ShmTransport>,
    ) -> Result<(Arc<Self>, Arc<RecvQueue>, SharedMem)> {
        let layout = match &parts.srq {
            None => Layout::new(parts.cap.max_recv_wr, parts.cap.max_recv_sge),
            Some(srq) => Layout::for_shared(srq.max_sge),
        };
        let queue = Arc::new(RecvQueue::new(&layout));
        let inbound = InboundGrant::create(&parts.shm.pair_memory, &layout, 0, queue.clone())?;
        let mem = inbound.mem.clone();
        let consumer = || Consumer::new(mem.clone(), &layout);
        let pair = Arc::new_cyclic(|this: &Weak<Self>| Self {
            recv: BiasedLock::new(RecvSide::new(consumer(), queue.clone())),
            send: PendingLock::new(SendSide::new(transport)),
            shared: parts.srq.clone().map(|srq| SharedReceiveSide::new(consumer(), srq, this.clone())),
            core: QpCore::new(qpn, transport, parts, layout, inbound, this.clone()),
            registry: registry.clone(),
        });
        let weak: Weak<Self> = Arc::downgrade(&pair);
        fork::add_queue(weak);
        Ok((pair, queue, mem))
    }

    /// Returns the shared receive queue that it uses.
    pub(crate) fn srq(&self) -> Option<Arc<SrqCore>> {
        self.shared.as_ref().map(|shared| shared.srq.clone())
    }

    /// Returns whether the peer may write to a receive now. Receives of the queue pair's own queue are always offered.
    pub(crate) fn offers_receive(&self) -> bool {
        self.shared.as_ref().is_none_or(SharedReceiveSide::is_offered)
    }

    /// Matches one quantum of messages with shared receives and announces the completions. Returns whether more
    /// messages may wait.
    pub(super) fn match_quantum(&self, shared: &SharedReceiveSide) -> bool {
        let quantum = shared.match_for_sleeper(&self.core);
        self.announce(shared, &quantum);
        quantum.has_more
    }

    /// Announces the completions of a quantum that a thread other than the polling thread matched.
    fn announce(&self, shared: &SharedReceiveSide, quantum: &MatchQuantum) {
        if quantum.has_completed {
            // The peer accepted this side's message before it sent its response. The event of the send therefore comes
            // first, as on devices, whose acknowledgements precede responses.
            self.resume_for_sleeper();
            self.announce_receives(quantum.solicited, || shared.has_stored());
        }
    }

    /// Delivers completions; called by the polling thread of a completion queue. In the error state it delivers only
    /// completions from before the error: see [`QueuePair::poll_failures`].
    #[inline]
    pub(crate) fn poll(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() == QpState::Err {
            return self.poll_before_failures(sends, receives, wc);
        }
        let mut delivered = if sends { self.deliver_sends(wc, |_| true) } else { 0 };
        if receives && delivered < wc.len() {
            // SAFETY: only the thread that polls the receive completion queue calls `poll` with `receives`, so `owner`
            // has one caller.
            delivered +=
                unsafe { self.recv.owner(|recv| recv.poll(&self.core, &mut wc[delivered..])) }.unwrap_or(0);
        }
        // Last, because a waiting request may fail now, and what the peer sent before the failure must be delivered
        // first.
        if self.send.has_pending() {
            self.continue_sends();
            if self.state() == QpState::Err {
                return delivered + self.poll_before_failures(sends, receives, &mut wc[delivered..]);
            }
            if sends {
                delivered += self.deliver_sends(&mut wc[delivered..], |_| true);
            }
        }
        delivered
    }

    /// Prefetches the memory that the next poll reads.
    #[inline]
    pub(crate) fn prefetch_for_poll(&self) {
        prefetch(
            self,
            [offset_of!(Self, recv), offset_of!(Self, core.completions), offset_of!(Self, core.state)],
        );
    }

    /// Delivers what succeeded before the queue pair failed. The completion queue fetches the failures when no queue
    /// pair has another completion. Failures are thus ordered after everything that the peer did before it exited, on
    /// any queue pair.
    #[cold]
    fn poll_before_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        let mut delivered = if sends { self.deliver_sends(wc, |wc| wc.status.is_success()) } else { 0 };
        if sends {
            self.send_slot.cq.defer_failures();
        }
        if receives {
            self.recv_slot.cq.defer_failures();
            let rest = &mut wc[delivered..];
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            delivered += unsafe { self.recv.owner(|recv| recv.poll_records(&self.core, rest)) }.unwrap_or(0);
        }
        delivered
    }

    /// Delivers the failures of a queue pair in error: first that of a send, which states the reason, then flushed
    /// requests.
    #[cold]
    pub(crate) fn poll_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() != QpState::Err {
            return 0;
        }
        if self.send.has_pending() {
            self.continue_sends();
        }
        let mut delivered = if sends { self.deliver_sends(wc, |_| true) } else { 0 };
        if receives && delivered < wc.len() {
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            delivered +=
                unsafe { self.recv.owner(|recv| recv.poll(&self.core, &mut wc[delivered..])) }.unwrap_or(0);
        }
        delivered
    }

    /// Matches messages with shared receives while the application thread does other work. Called by the service
    /// thread.
    pub(crate) fn continue_receives(&self) {
        if let Some(shared) = &self.shared
            && self.match_quantum(shared)
        {
            self.recv_slot.cq.run_service_quantum();
        }
    }

    /// Handles the peer's notification that it has sent a message.
    pub(crate) fn on_message(&self) {
        if self.shared.is_none() {
            self.raise_comm_est();
        }
        self.continue_receives();
    }

    /// Continues waiting requests, unless another thread is doing so. Called by the thread that polls for their
    /// completions.
    pub(crate) fn continue_sends(&self) {
        self.progress_sends(true);
    }

    pub(crate) fn progress_sends(&self, attends: bool) {
        let Some(mut send) = self.send.helper() else { return };
        send.resume(&self.core);
        if attends && send.needs_polls_only() {
            self.app_poll_count
                .store(self.app_poll_count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        let matched = send.connection.initiator_mut().and_then(Initiator::take_due_match);
        drop(send);
        self.after_leaving_sends();
        if let Some(target) = matched.and_then(|qpn| self.registry.qp(qpn)) {
            target.match_for_sender();
            self.resume_for_sleeper();
        }
    }

    /// Matches messages with shared receives on behalf of a sender of this process that waits for it.
    #[cold]
    fn match_for_sender(&self) {
        match &self.shared {
            Some(shared) if !is_service_thread() => {
                shared
                    .try_match_for_sleeper(&self.core)
                    .iter()
                    .for_each(|quantum| self.announce(shared, quantum));
            }
            // The sending thread does other work; handled as if its process had sent a request.
            _ => self.continue_receives(),
        }
    }

    /// Continues waiting requests while the application thread sleeps, after a service request. The completions raise
    /// the event.
    #[cold]
    pub(crate) fn resume_for_sleeper(&self) {
        // Waits for the lock: the thread inside may have checked before the delivery for which service was requested.
        let Some(mut send) = self.send.helper_after_wait() else { return };
        send.resume(&self.core);
        drop(send);
        self.after_leaving_sends();
    }

    /// Must be called by every thread that has left the send side, if requests may wait there.
    pub(crate) fn after_leaving_sends(&self) {
        let CqSlot { cq, bit } = &self.send_slot;
        credit_request::after_release(&self.send, cq.readiness(), *bit, |send| {
            send.request_and_resume(&self.core)
        });
    }

    /// Returns whether a poll may find a completion.
    pub(crate) fn may_have_completions(&self, sends: bool, receives: bool) -> bool {
        self.send.has_pending()
            || (sends && !self.completions.is_empty())
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            || (receives && unsafe { self.recv.owner(|recv| recv.may_have_completions(&self.core)) }.unwrap_or(true))
    }

    /// Returns the receive side if the receives are shared.
    pub(crate) fn shared(&self) -> Option<&SharedReceiveSide> {
        self.shared.as_ref()
    }

    /// Begins a new incarnation: a new inbound segment and new queues. The peer's mapping of the old segment has no
    /// effect any more.
    pub(crate) fn renew(&self) -> Result<(Arc<RecvQueue>, SharedMem)> {
        let incarnation = self.incarnation().wrapping_add(1);
        let queue = Arc::new(RecvQueue::new(&self.layout));
        let renewed = InboundGrant::create(&self.shm.pair_memory, &self.layout, incarnation, queue.clone())?;
        let consumer = Consumer::new(renewed.mem.clone(), &self.layout);
        // SAFETY: only the thread that owns the queue pair calls it, so `revoke` has one caller at a time, outside
        // `owner`.
        unsafe { self.recv.revoke(|recv| *recv = RecvSide::new(consumer, queue.clone())) };
        if let Some(shared) = &self.shared {
            shared.renew(&self.core, Consumer::new(renewed.mem.clone(), &self.layout));
        }
        let mem = renewed.mem.clone();
        *self.inbound.lock() = renewed;
        *self.ready_handshake.lock() = None;
        Ok((queue, mem))
    }

    /// Detaches the queue pair from its completion queues. No poll accesses its receives afterwards.
    pub(crate) fn detach(&self) {
        CqSlot::release(&self.send_slot, &self.recv_slot);
        // A poll that began earlier may still enter through its copy of the list. It must find nothing to do.
        // SAFETY: only the thread that owns the queue pair calls it, and it holds no guard of the send side.
        unsafe { self.send.owner() }.renew(&self.core);
        // SAFETY: only the thread that owns the queue pair calls it, so `revoke` has one caller at a time, outside
        // `owner`.
        unsafe { self.recv.revoke(RecvSide::end) };
        if let Some(shared) = &self.shared {
            shared.end(&self.core);
        }
    }
}

impl DisableInChild for QueuePair {
    fn disable_in_child(&self) {
        self.state.apply(StateEvent::Inherit, self.transport.qp_type());
    }
}
