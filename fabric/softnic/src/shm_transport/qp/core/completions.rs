//! Polling of a queue pair, and continuation of requests that wait.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use farcall_shm::ring::RNR;
use farcall_shm::{credit_request, prefetch};
use farcall_verbs::{Access, AsyncEventKind, QpState, SendFlags, Sge, Wc, WcStatus, WrOpcode};

use super::QpCore;
use crate::process::is_service_thread;
use crate::shm_transport::CqSlot;
use crate::shm_transport::flight::Event;
use crate::shm_transport::qp::initiator::Initiator;
use crate::shm_transport::qp::request::completion_opcode;
use crate::shm_transport::qp::shared_receive::SharedReceiveSide;
use crate::shm_transport::state::StateEvent;

impl QpCore {
    /// Delivers completions; called by the polling thread of a completion queue. In the error state it delivers only
    /// completions from before the error: see [`QpCore::poll_failures`].
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
                unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[delivered..])) }.unwrap_or(0);
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
        prefetch(self, [offset_of!(Self, recv), offset_of!(Self, completions), offset_of!(Self, state)]);
    }

    /// Delivers completions of sends as long as `selected` returns `true`.
    #[inline]
    fn deliver_sends(&self, wc: &mut [Wc], selected: impl Fn(&Wc) -> bool) -> usize {
        let mut delivered = 0;
        while delivered < wc.len()
            // SAFETY: only the thread that polls the send completion queue pops completions.
            && let Some(completion) = unsafe { self.completions.pop_if(&selected) }
        {
            wc[delivered] = completion;
            delivered += 1;
        }
        delivered
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
            delivered += unsafe { self.recv.owner(|recv| recv.poll_records(self, rest)) }.unwrap_or(0);
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
                unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[delivered..])) }.unwrap_or(0);
        }
        delivered
    }

    /// Called when a shared receive was posted: withdraws the RNR NAK of `message`, which had found no receive.
    pub(crate) fn on_receive_posted(&self, message: u64) {
        // A later message may have been refused since.
        self.inbound.lock().mem.compare_exchange(RNR, message, 0);
    }

    /// Matches messages with shared receives while the application thread does other work. Called by the service
    /// thread.
    pub(crate) fn continue_receives(&self) {
        if let Some(shared) = &self.shared
            && shared.match_for_sleeper(self)
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

    /// Called when a message has arrived: the first one in RTR raises an event.
    pub(crate) fn raise_comm_est(&self) {
        if self.state() == QpState::Rtr && self.apply_event(StateEvent::MessageReceived) {
            self.raise(AsyncEventKind::CommEst);
        }
    }

    /// Continues waiting requests, unless another thread is doing so. Called by the thread that polls for their
    /// completions.
    pub(crate) fn continue_sends(&self) {
        self.progress_sends(true);
    }

    pub(crate) fn progress_sends(&self, attends: bool) {
        let Some(mut send) = self.send.helper() else { return };
        send.resume(self);
        if attends && send.needs_polls_only() {
            self.app_poll_count
                .store(self.app_poll_count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        let matched = send.connection.initiator_mut().and_then(Initiator::take_due_match);
        drop(send);
        self.after_leaving_sends();
        if let Some(target) = matched.and_then(|qpn| self.shm.qp(qpn)) {
            target.match_for_sender();
            self.service_sends();
        }
    }

    /// Matches messages with shared receives on behalf of a sender of this process that waits for it.
    #[cold]
    fn match_for_sender(&self) {
        match &self.shared {
            Some(shared) if !is_service_thread() => shared.try_match_for_sleeper(self),
            // The sending thread does other work; handled as if its process had sent a request.
            _ => self.continue_receives(),
        }
    }

    /// Continues waiting requests while the application thread sleeps, after a service request. The completions raise
    /// the event.
    #[cold]
    pub(crate) fn service_sends(&self) {
        // Waits for the lock: the thread inside may have checked before the delivery for which service was requested.
        let Some(mut send) = self.send.helper_after_wait() else { return };
        send.resume(self);
        drop(send);
        self.after_leaving_sends();
    }

    /// Must be called by every thread that has left the send side, if requests may wait there.
    pub(crate) fn after_leaving_sends(&self) {
        let CqSlot { cq, bit } = &self.send_slot;
        credit_request::after_release(&self.send, cq.readiness(), *bit, |send| send.request_and_resume(self));
    }

    /// Returns whether a poll may find a completion.
    pub(crate) fn may_have_completions(&self, sends: bool, receives: bool) -> bool {
        self.send.has_pending()
            || (sends && !self.completions.is_empty())
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            || (receives && unsafe { self.recv.owner(|recv| recv.may_have_completions(self)) }.unwrap_or(true))
    }

    /// Returns the receive side if the receives are shared.
    pub(crate) fn shared(&self) -> Option<&SharedReceiveSide> {
        self.shared.as_ref()
    }

    /// Returns the number of send completions that have not been polled.
    pub(crate) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Drops send completions that were not polled. The caller holds the send side.
    pub(crate) fn discard_completions(&self) {
        // SAFETY: completions are pushed only by the holder of the send side, which is the caller.
        unsafe { self.completions.discard() }
    }

    /// Completes a send request that moved `len_bytes`. It generates a completion only if it is signalled.
    #[inline]
    pub(crate) fn complete_send(&self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, len_bytes: u64) {
        if self.signal_all || flags.contains(SendFlags::SIGNALED) {
            // A message has less than 2^32 bytes.
            let byte_len = len_bytes as u32;
            self.push_completion(Wc {
                byte_len,
                ..Wc::ended(wr_id, self.qpn, completion_opcode(opcode), WcStatus::SUCCESS)
            });
        }
    }

    /// Completes a send request that failed.
    #[cold]
    pub(crate) fn fail_send(&self, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.stats.send_errors.increment();
        self.stats.record(Event::SendFailed as u64, status.0.into());
        self.push_completion(Wc::ended(wr_id, self.qpn, completion_opcode(opcode), status));
    }

    #[inline]
    fn push_completion(&self, completion: Wc) {
        // SAFETY: called only by the holder of the send side, so by one thread at a time; `post_send` reserved an entry
        // for every request.
        unsafe { self.completions.push(completion) };
        self.send_slot.cq.announce(self.send_slot.bit, !completion.status.is_success());
    }

    /// Announces possible receives: to the receive completion queue's next poll or, if the application thread sleeps,
    /// to the service thread, which determines whether there is a completion.
    pub(crate) fn check_receives(&self) {
        let service = &self.shm.process.service;
        self.recv_slot.cq.readiness().request_service(self.recv_slot.bit, || service.wake());
    }

    /// Announces a completion to the receive completion queue, unless `is_due` returns that it has been delivered
    /// already.
    pub(crate) fn announce_receives(&self, solicited: bool, is_due: impl Fn() -> bool) {
        self.recv_slot.cq.announce_due(self.recv_slot.bit, solicited, is_due);
    }

    /// Announces the queue pair to both completion queues.
    pub(crate) fn announce_locally(&self, solicited: bool) {
        self.send_slot.cq.announce(self.send_slot.bit, solicited);
        self.recv_slot.cq.announce(self.recv_slot.bit, solicited);
    }

    /// Adds the queue pair to the list that the service thread processes at intervals. Returns whether it was not
    /// listed yet.
    pub(crate) fn schedule_service(&self) -> bool {
        self.shm.process.service.schedule(self, &self.this)
    }

    pub(crate) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Records whether receives cannot be flushed at the moment.
    pub(crate) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.shm.process.service.schedule_now(self, &self.this);
        }
    }

    /// Returns whether the regions named by the scatter/gather elements permit `need`.
    #[inline]
    pub(crate) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.shm.process.regions.allows_all(sges, self.pd, need)
    }

    /// Returns whether the first bytes of the receive's scatter elements may take a message of `len_bytes`.
    pub(crate) fn allows_receive(&self, sges: &[Sge], len_bytes: u32) -> bool {
        self.shm.process.regions.allows_first(sges, len_bytes.into(), self.pd, Access::LOCAL_WRITE)
    }

    /// Called after receives were posted or records consumed: notifies a peer that waits for that.
    #[cold]
    pub(crate) fn notify_credit(&self) {
        let inbound = self.inbound.lock();
        if self.shared.is_some() { inbound.notify_shared_credit() } else { inbound.notify_credit() }
    }
}
