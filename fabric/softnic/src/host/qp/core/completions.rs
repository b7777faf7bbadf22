//! What polls find, and who looks after requests that wait.

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
    /// Delivers completions; called by the owner of a completion queue. Of a pair in error only what came before the
    /// error: see [`QpCore::poll_failures`].
    #[inline]
    pub(crate) fn poll(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        if self.state() == QpState::Err {
            return self.poll_before_failures(sends, receives, wc);
        }
        let mut taken = if sends { self.take_sends(wc, |_| true) } else { 0 };
        if receives && taken < wc.len() {
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        // Last: a request that waited may fail now, and what the peer sent before comes first.
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

    /// Asks for the memory of the next look.
    #[inline]
    pub(crate) fn prefetch_for_poll(&self) {
        prefetch(self, [offset_of!(Self, recv), offset_of!(Self, completions), offset_of!(Self, state)]);
    }

    /// Takes completions of sends as long as `which` says so.
    #[inline]
    fn take_sends(&self, wc: &mut [Wc], which: impl Fn(&Wc) -> bool) -> usize {
        let mut taken = 0;
        while taken < wc.len()
            // SAFETY: completions are taken by the owner of the one send completion queue only.
            && let Some(completion) = unsafe { self.completions.pop_if(&which) }
        {
            wc[taken] = completion;
            taken += 1;
        }
        taken
    }

    /// What succeeded before the pair failed. The queue asks for the failures when no pair has anything else, so that
    /// they come in their place: after what the peer did before it died, on whatever pair.
    #[cold]
    fn poll_before_failures(&self, sends: bool, receives: bool, wc: &mut [Wc]) -> usize {
        let mut taken = if sends { self.take_sends(wc, |wc| wc.status.is_success()) } else { 0 };
        if sends {
            self.send_slot.cq.hold_back();
        }
        if receives {
            self.recv_slot.cq.hold_back();
            let rest = &mut wc[taken..];
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.owner(|recv| recv.poll_records(self, rest)) }.unwrap_or(0);
        }
        taken
    }

    /// Delivers the failures of a pair in error: first that of a send, which says why, then what is flushed.
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
            // SAFETY: the owner of the one receive completion queue is the resident.
            taken += unsafe { self.recv.owner(|recv| recv.poll(self, &mut wc[taken..])) }.unwrap_or(0);
        }
        taken
    }

    /// A shared receive was posted: the peer is not told any more that its message, which found none, finds none.
    pub(crate) fn end_rnr(&self, message: u64) {
        // A later message may have found none since.
        self.inbound.lock().mem.compare_exchange(RNR, message, 0);
    }

    /// Matches messages with shared receives, for an owner who does something else. For the service thread.
    pub(crate) fn continue_receives(&self) {
        if let Some(shared) = &self.shared
            && shared.match_ahead(self)
        {
            self.recv_slot.cq.take_turns();
        }
    }

    /// The peer says that it has sent something.
    pub(crate) fn message_came(&self) {
        if self.shared.is_none() {
            self.tell_establishment();
        }
        self.continue_receives();
    }

    /// A message has come; in RTR the first one is told by an event.
    pub(crate) fn tell_establishment(&self) {
        if self.state() == QpState::Rtr && self.make_step(Step::MessageCame) {
            self.raise(AsyncEventKind::CommEst);
        }
    }

    /// Continues requests that wait, unless somebody does already; called by who polls for their completions.
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
        let matched = send.way.initiator_mut().and_then(Initiator::take_match);
        drop(send);
        self.after_leaving_sends();
        if let Some(target) = matched.and_then(|qpn| self.host.qp(qpn)) {
            target.match_for_sender();
            self.look_after_sends();
        }
    }

    /// Matches messages with shared receives, for a sender of this process that waits for it.
    #[cold]
    fn match_for_sender(&self) {
        match &self.shared {
            Some(shared) if !is_service_thread() => shared.try_match_ahead(self),
            // For a sender that does something else, as if it had asked.
            _ => self.continue_receives(),
        }
    }

    /// Goes on with what waits, for an owner who sleeps and was nudged; what completes makes its event.
    #[cold]
    pub(crate) fn look_after_sends(&self) {
        // Who is inside may have looked before that was given for which we were nudged.
        let Some(mut send) = self.send.helper_after_wait() else { return };
        send.resume(self);
        drop(send);
        self.after_leaving_sends();
    }

    /// To be called by whoever has left the send side, if something may wait there.
    pub(crate) fn after_leaving_sends(&self) {
        let CqSlot { cq, bit } = &self.send_slot;
        notify::after_leaving(&self.send, cq.readiness(), *bit, |send| send.ask_and_resume(self));
    }

    /// Whether a poll may find something.
    pub(crate) fn has_something(&self, sends: bool, receives: bool) -> bool {
        self.send.has_pending()
            || (sends && !self.completions.is_empty())
            // SAFETY: as in `poll`: only the owner of the receive completion queue is the resident.
            || (receives && unsafe { self.recv.owner(|recv| recv.has_something(self)) }.unwrap_or(true))
    }

    /// The receive side, if its receives are shared.
    pub(crate) fn shared(&self) -> Option<&SharedSide> {
        self.shared.as_ref()
    }

    /// Send completions not yet polled.
    pub(crate) fn unpolled(&self) -> usize {
        self.completions.len()
    }

    /// Drops send completions that were not polled; called with the send side held.
    pub(crate) fn forget_completions(&self) {
        // SAFETY: only who holds the send side ends requests.
        unsafe { self.completions.forget() }
    }

    /// Ends a send request that moved `len_bytes`; it makes a completion only if it is signalled.
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

    /// Ends a send request that failed.
    #[cold]
    pub(crate) fn fail_send(&self, wr_id: u64, opcode: WrOpcode, status: WcStatus) {
        self.stats.send_errors.increment();
        self.stats.record(Event::SendFailed as u64, status.0.into());
        self.end_send(Wc::ended(wr_id, self.qpn, completion_opcode(opcode), status));
    }

    #[inline]
    fn end_send(&self, completion: Wc) {
        // SAFETY: called only from inside the send side, by one thread; posting keeps a place for every request.
        unsafe { self.completions.push(completion) };
        self.send_slot.cq.announce(self.send_slot.bit, !completion.status.is_success());
    }

    /// Makes the owner of the receive completion queue look here, or if it sleeps the service thread, which finds out
    /// whether there is a completion.
    pub(crate) fn look_at_receives(&self) {
        let service = &self.host.process.service;
        self.recv_slot.cq.readiness().nudge(self.recv_slot.bit, || service.wake());
    }

    /// Makes the owner of the receive completion queue look here, if it has not yet.
    pub(crate) fn announce_receives(&self, solicited: bool, is_due: impl Fn() -> bool) {
        self.recv_slot.cq.announce_due(self.recv_slot.bit, solicited, is_due);
    }

    /// Makes the owners of both completion queues look here.
    pub(crate) fn announce_locally(&self, solicited: bool) {
        self.send_slot.cq.announce(self.send_slot.bit, solicited);
        self.recv_slot.cq.announce(self.recv_slot.bit, solicited);
    }

    /// Lets the service thread look after us from time to time; returns whether it did not already.
    pub(crate) fn retry_later(&self) -> bool {
        self.host.process.service.retry(self, &self.this)
    }

    pub(crate) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Receives cannot be flushed now (true), or were (false).
    pub(crate) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.host.process.service.retry_now(self, &self.this);
        }
    }

    /// Whether local elements are allowed.
    #[inline]
    pub(crate) fn allows(&self, sges: &[Sge], need: Access) -> bool {
        self.host.process.regions.allows_all(sges, self.pd, need)
    }

    /// Whether the first bytes of a receive's elements may take a message of `len_bytes`.
    pub(crate) fn allows_receive(&self, sges: &[Sge], len_bytes: u32) -> bool {
        self.host.process.regions.allows_first(sges, len_bytes.into(), self.pd, Access::LOCAL_WRITE)
    }

    /// After posting receives or consuming records: wakes a peer that waits for that.
    #[cold]
    pub(crate) fn give_credit(&self) {
        let inbound = self.inbound.lock();
        if self.shared.is_some() { inbound.give_shared_credit() } else { inbound.give_credit() }
    }
}
