//! Completions of a queue pair, and their announcement.

use std::sync::atomic::Ordering;

use farcall_shm::ring::RNR;
use farcall_verbs::{Access, AsyncEventKind, QpState, SendFlags, Sge, Wc, WcStatus, WrOpcode};

use super::QpCore;
use crate::shm_transport::flight::Event;
use crate::shm_transport::qp::request::completion_opcode;
use crate::shm_transport::state::StateEvent;

impl QpCore {
    /// Delivers completions of sends as long as `selected` returns `true`.
    #[inline]
    pub(in super::super) fn deliver_sends(&self, wc: &mut [Wc], selected: impl Fn(&Wc) -> bool) -> usize {
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

    /// Called when a shared receive was posted: withdraws the RNR NAK of `message`, which had found no receive.
    pub(crate) fn on_receive_posted(&self, message: u64) {
        // A later message may have been refused since.
        self.inbound.lock().mem.compare_exchange(RNR, message, 0);
    }

    /// Called when a message has arrived: the first one in RTR raises an event.
    pub(crate) fn raise_comm_est(&self) {
        if self.state() == QpState::Rtr && self.apply_event(StateEvent::MessageReceived) {
            self.raise(AsyncEventKind::CommEst);
        }
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
        self.shm.process.service.schedule(&self.is_listed, || self.work.clone())
    }

    pub(crate) fn set_send_waits(&self, waits: bool) {
        self.send_waits.store(waits, Ordering::Release);
    }

    /// Records whether receives cannot be flushed at the moment.
    pub(crate) fn set_flush_waits(&self, waits: bool) {
        if self.flush_waits.swap(waits, Ordering::AcqRel) != waits && waits {
            self.shm.process.service.schedule_now(self.work.clone());
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
        if self.shares_receives { inbound.notify_shared_credit() } else { inbound.notify_credit() }
    }
}
