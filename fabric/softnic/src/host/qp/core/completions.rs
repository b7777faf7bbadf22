//! Polling of a queue pair, and continuation of requests that wait.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use farcall_shm::ring::RNR;
use farcall_shm::{notify, prefetch};
use farcall_verbs::{Access, AsyncEventKind, QpState, SendFlags, Sge, Wc, WcStatus, WrOpcode};

use super::QpCore;
use crate::host::CqSlot;
use crate::host::flight::Event;
use crate::host::qp::initiator::Initiator;
use crate::host::qp::request::completion_opcode;
use crate::host::qp::shared_receive::SharedSide;
use crate::host::state::Step;
use crate::life::is_service_thread;

impl QpCore {
    /// Delivers completions; called by the polling thread of a completion queue. In the error state it delivers only
    /// completions from before the error: see [`QpCore::poll_failures`].
    #[inline]
    pub(crate) fn poll(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() == QpState::Err {
            return self.poll_before_failures(sends, receives, wc);
        }
        let mut taken = if sends { self.take_sends(wc, |_| true) } else { 0 };
        if receives && taken < wc.len() {
            // SAFETY: only the thread that polls the receive completion queue calls `poll` with `receives`, so `owner`
            // has one caller.
            taken += unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        // Last, because a waiting request may fail now, and what the peer sent before the failure must be delivered
        // first.
        if self.send.has_pending() {
            self.continue_sends();
            if self.state() == QpState::Err {
                return taken + self.poll_before_failures(sends, receives, &mut wc[taken..]);
            }
            if sends {
                taken += self.take_sends(&mut wc[taken..], |_| true);
            }
        }
        taken
    }

    /// Prefetches the memory that the next poll reads.
    #[inline]
    pub(crate) fn prefetch_for_poll(&self) {
        prefetch(self, [offset_of!(Self, recv), offset_of!(Self, completions), offset_of!(Self, state)]);
    }

    /// Delivers completions of sends as long as `which` returns `true`.
    #[inline]
    fn take_sends(&self, wc: &mut [Wc], which: impl Fn(&Wc) -> bool) -> usize {
        let mut taken = 0;
        while taken < wc.len()
            // SAFETY: only the thread that polls the send completion queue pops completions.
            && let Some(completion) = unsafe { self.completions.pop_if(&which) }
        {
            wc[taken] = completion;
            taken += 1;
        }
        taken
    }

    /// Delivers what succeeded before the queue pair failed. The completion queue fetches the failures when no queue
    /// pair has another completion. Failures are thus ordered after everything that the peer did before it exited, on
    /// any queue pair.
    #[cold]
    fn poll_before_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        let mut taken = if sends { self.take_sends(wc, |wc| wc.status.is_success()) } else { 0 };
        if sends {
            self.send_slot.cq.hold_back();
        }
        if receives {
            self.recv_slot.cq.hold_back();
            let rest = &mut wc[taken..];
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            taken += unsafe { self.recv.owner(|recv| recv.poll_records(self, rest)) }.unwrap_or(0);
        }
        taken
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
        let mut taken = if sends { self.take_sends(wc, |_| true) } else { 0 };
        if receives && taken < wc.len() {
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            taken += unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        taken
    }

    /// Called when a shared receive was posted: withdraws the RNR NAK of `message`, which had found no receive.
    pub(crate) fn end_rnr(&self, message: u64) {
        // A later message may have been refused since.
        self.inbound.lock().mem.compare_exchange(RNR, message, 0);
    }

    /// Matches messages with shared receives while the application thread does other work. Called by the service
    /// thread.
    pub(crate) fn continue_receives(&self) {
        if let Some(shared) = &self.shared
            && shared.match_ahead(self)
        {
            self.recv_slot.cq.take_turns();
        }
    }

    /// Handles the peer's notification that it has sent a message.
    pub(crate) fn message_came(&self) {
        if self.shared.is_none() {
            self.tell_establishment();
        }
        self.continue_receives();
    }

    /// Called when a message has arrived: the first one in RTR raises an event.
    pub(crate) fn tell_establishment(&self) {
        if self.state() == QpState::Rtr && self.make_step(Step::MessageCame) {
            self.raise(AsyncEventKind::CommEst);
        }
    }

    /// Continues waiting requests, unless another thread is doing so. Called by the thread that polls for their
    /// completions.
    pub(crate) fn continue_sends(&self) {
        self.visit_sends(true);
    }

    pub(crate) fn visit_sends(&self, attends: bool) {
        let Some(mut send) = self.send.helper() else { return };
        send.resume(self);
        if attends && send.needs_polls_only() {
            self.owner_visits
                .store(self.owner_visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        let waits_for_reply = attends && send.waits_for_reply();
        let matched = send.way.initiator_mut().and_then(Initiator::take_match);
        drop(send);
        if waits_for_reply {
            // A service thread replies: this process's own or the peer's. If more threads poll than there are cores, it
            // would otherwise be scheduled after all of them.
            std::thread::yield_now();
        }
        self.after_leaving_sends();
        if let Some(target) = matched.and_then(|qpn| self.host.qp(qpn)) {
            target.match_for_sender();
            self.look_after_sends();
        }
    }

    /// Matches messages with shared receives on behalf of a sender of this process that waits for it.
    #[cold]
    fn match_for_sender(&self) {
        match &self.shared {
            Some(shared) if !is_service_thread() => shared.try_match_ahead(self),
            // The sending thread does other work; handled as if its process had sent a request.
            _ => self.continue_receives(),
        }
    }

    /// Continues waiting requests while the application thread sleeps, after a service request. The completions raise
    /// the event.
    #[cold]
    pub(crate) fn look_after_sends(&self) {
        // Waits for the lock: the thread inside may have checked before the delivery for which service was requested.
        let Some(mut send) = self.send.helper_after_wait() else { return };
        send.resume(self);
        drop(send);
        self.after_leaving_sends();
    }

    /// Must be called by every thread that has left the send side, if requests may wait there.
    pub(crate) fn after_leaving_sends(&self) {
        let CqSlot { cq, bit } = &self.send_slot;
        notify::after_leaving(&self.send, cq.readiness(), *bit, |send| send.ask_and_resume(self));
    }

    /// Returns whether a poll may find a completion.
    pub(crate) fn has_something(&self, sends: bool, receives: bool) -> bool {
        self.send.has_pending()
            || (sends && !self.completions.is_empty())
            // SAFETY: only the thread that polls the receive completion queue calls it with `receives`, so `owner` has
            // one caller.
            || (receives && unsafe { self.recv.owner(|recv| recv.has_something(self)) }.unwrap_or(true))
    }

    /// Returns the receive side if the receives are shared.
    pub(crate) fn shared(&self) -> Option<&SharedSide> {
        self.shared.as_ref()
    }

    /// Returns the number of send completions that have not been polled.
    pub(crate) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Drops send completions that were not polled. The caller holds the send side.
    pub(crate) fn forget_completions(&self) {
        // SAFETY: completions are pushed only by the holder of the send side, which is the caller.
        unsafe { self.completions.forget() }
    }

    /// Completes a send request that moved `len_bytes`. It generates a completion only if it is signalled.
    #[inline]
    pub(crate) fn complete_send(&self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, len_bytes: u64) {
        if self.signal_all || flags.contains(SendFlags::SIGNALED) {
            // A message has less than 2^32 bytes.
            let byte_len = len_bytes as u32;
            self.end_send(Wc {
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
        self.end_send(Wc::ended(wr_id, self.qpn, completion_opcode(opcode), status));
    }

    #[inline]
    fn end_send(&self, completion: Wc) {
        // SAFETY: called only by the holder of the send side, so by one thread at a time; `post_send` reserved an entry
        // for every request.
        unsafe { self.completions.push(completion) };
        self.send_slot.cq.announce(self.send_slot.bit, !completion.status.is_success());
    }

    /// Announces possible receives: to the receive completion queue's next poll or, if the application thread sleeps,
    /// to the service thread, which determines whether there is a completion.
    pub(crate) fn look_at_receives(&self) {
        let service = &self.host.process.service;
        self.recv_slot.cq.readiness().nudge(self.recv_slot.bit, || service.wake());
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
    pub(crate) fn retry_later(&self) -> bool {
        self.host.process.service.retry(self, &self.this)
    }

    pub(crate) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Records whether receives cannot be flushed at the moment.
    pub(crate) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.host.process.service.retry_now(self, &self.this);
        }
    }

    /// Returns whether the regions named by the scatter/gather elements permit `need`.
    #[inline]
    pub(crate) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.host.process.regions.allows_all(sges, self.pd, need)
    }

    /// Returns whether the first bytes of the receive's scatter elements may take a message of `len_bytes`.
    pub(crate) fn allows_receive(&self, sges: &[Sge], len_bytes: u32) -> bool {
        self.host.process.regions.allows_first(sges, len_bytes.into(), self.pd, Access::LOCAL_WRITE)
    }

    /// Called after receives were posted or records consumed: notifies a peer that waits for that.
    #[cold]
    pub(crate) fn give_credit(&self) {
        let inbound = self.inbound.lock();
        if self.shared.is_some() { inbound.give_shared_credit() } else { inbound.give_credit() }
    }
}
