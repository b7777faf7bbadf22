//! Messages to a target whose receives are shared with other queue pairs, so that only the target can determine whether
//! a receive is available (the receiver is in `qp::shared_receive`).
//!
//! Small messages are written to the ring immediately, several in flight. For a large message a receive is requested
//! from the target. All messages stay in the wait queue until the target has accepted them in order, because later
//! requests of other kinds must not overtake them.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use farcall_shm::hazard;
use farcall_shm::ring::{Kind, NAK, OFFERED, RNR, SOLICITED, TAKEN, TAKEN_COUNT, WITHDRAWN};
use farcall_verbs::{WcStatus, WrOpcode};

use super::QpCore;
use super::initiator::Initiator;
use super::message::{EAGER_BYTES, place};
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::wait_queue::WaitQueue;
use crate::process::is_service_thread;
use crate::process::rendezvous::RequestBody;

/// Number of empty polls after which the target's application thread is assumed not to poll. They take some tens of
/// microseconds, which is about the cost of the thread wake-up that a request causes.
const POLLS_BEFORE_REQUEST: u32 = 256;

/// Time after which the same is assumed, if polls take longer or the polling thread does other work in between.
const WAIT_BEFORE_REQUEST: Duration = Duration::from_micros(50);

impl Initiator {
    /// Publishes the oldest message as far as possible.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    #[cold]
    pub(crate) unsafe fn shared_message(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        let flags = request.record_flags();
        let len = request.len_bytes as u32;
        if self.in_flight.offer_requested
            && let Some(refused @ ExecuteOutcome::Failed(_)) = self.target_response()
        {
            return refused;
        }
        if self.accepts().is_none() {
            return ExecuteOutcome::Wait(WaitReason::Peer);
        }
        if !self.producer.has_room(if request.len_bytes <= EAGER_BYTES { len as usize } else { 0 }, 0) {
            return ExecuteOutcome::Wait(WaitReason::Target);
        }
        if request.opcode == WrOpcode::WRITE_WITH_IMM {
            // SAFETY: by the contract of this function the request's memory is valid, as `write_and_publish` requires.
            return match unsafe { self.write_and_publish(request) } {
                ExecuteOutcome::Done => ExecuteOutcome::Published,
                outcome => outcome,
            };
        }
        if request.len_bytes <= EAGER_BYTES {
            // SAFETY: by the contract of this function the elements are readable.
            unsafe { self.publish_eager(request, flags) };
            return ExecuteOutcome::Published;
        }
        if !std::mem::replace(&mut self.in_flight.offer_requested, true) {
            self.producer.publish_empty(Kind::Offer, 0, len, 0);
            self.unannounced = true;
        }
        if self.inbound().load(OFFERED, Acquire) <= self.sent {
            return self.target_response().unwrap_or(ExecuteOutcome::Wait(WaitReason::Target));
        }
        hazard::enter(self.inbound(), hazard::RECEIVES);
        let placed = if self.accepts().is_some() {
            // SAFETY: by the contract of this function the elements are readable; the hazard is published, and the ring
            // has a free slot.
            unsafe { place(self, request, flags) }
        } else {
            Some(ExecuteOutcome::Wait(WaitReason::Peer))
        };
        hazard::leave(self.inbound());
        let outcome = match placed {
            Some(outcome) => outcome,
            // SAFETY: by the contract of this function the request's memory is valid, as `place_unmapped` requires.
            None => unsafe { self.place_unmapped(request, flags) },
        };
        if let ExecuteOutcome::Done = outcome {
            self.in_flight.offer_requested = false;
            return ExecuteOutcome::Published;
        }
        outcome
    }

    /// Returns the target's response to the oldest message that it has not accepted, if there is one.
    fn target_response(&self) -> Option<ExecuteOutcome> {
        let (nak, next) = (self.inbound().load(NAK, Acquire), self.in_flight.accepted + 1);
        if nak >> 8 == next {
            let status = if nak as u8 == WcStatus::REM_INV_REQ_ERR.0 as u8 {
                WcStatus::REM_INV_REQ_ERR
            } else {
                WcStatus::REM_OP_ERR
            };
            return Some(ExecuteOutcome::Failed(status));
        }
        if self.accepts().is_none() {
            return Some(ExecuteOutcome::Wait(WaitReason::Peer));
        }
        (self.inbound().load(RNR, Acquire) == next).then_some(ExecuteOutcome::Wait(WaitReason::Receiver))
    }

    /// Checks whether the target has accepted the oldest message in flight.
    pub(crate) fn confirm(&mut self, core: &QpCore, waiting: &WaitQueue) -> ExecuteOutcome {
        let accepted = self.inbound().load(TAKEN, Acquire) & TAKEN_COUNT;
        if accepted > self.in_flight.accepted {
            self.in_flight.accept();
            if let Some(queued) = waiting.front() {
                core.stats.executed(WrOpcode(queued.opcode), queued.len_bytes());
            }
            return ExecuteOutcome::Done;
        }
        if self.peer.liveness.is_known_exited() {
            return ExecuteOutcome::Failed(WcStatus::RETRY_EXC_ERR);
        }
        self.target_response().unwrap_or(ExecuteOutcome::Wait(WaitReason::Target))
    }

    /// Withdraws all messages in flight that were not accepted, permanently. Returns `false` if the target has accepted
    /// more in the meantime.
    pub(crate) fn withdraw(&mut self) -> bool {
        let accepted = self.in_flight.accepted;
        if !self.layout.shared {
            return true;
        }
        // The target may have offered a receive that is not used now; the announcement makes it take the receive back.
        self.unannounced = true;
        self.inbound().compare_exchange(TAKEN, accepted, accepted | WITHDRAWN)
            || self.inbound().load(TAKEN, Acquire) & TAKEN_COUNT <= accepted
    }

    /// Returns whether the oldest message waits only for a thread that matches the target's shared receives.
    fn is_unmatched(&self) -> bool {
        (self.in_flight.count > 0 || self.in_flight.offer_requested) && self.target_response().is_none()
    }

    /// Called after a poll without success; the message has waited for `waited`. If the target's application thread
    /// appears not to poll, requests that its service thread matches messages.
    pub(crate) fn on_empty_poll(&mut self, core: &QpCore, waited: Duration) {
        if !self.is_unmatched() {
            self.in_flight.polls = 0;
            return;
        }
        let (polls, is_timer) = (self.in_flight.polls, is_service_thread());
        self.in_flight.polls = polls.saturating_add(1);
        if self.is_own(core) {
            self.in_flight.must_match =
                is_timer || waited >= WAIT_BEFORE_REQUEST || self.in_flight.is_match_due();
            return;
        }
        if waited >= WAIT_BEFORE_REQUEST && !is_timer {
            self.in_flight.polls = self.in_flight.polls.max(POLLS_BEFORE_REQUEST);
        }
        if polls < POLLS_BEFORE_REQUEST && self.in_flight.polls >= POLLS_BEFORE_REQUEST {
            core.stats.matches_asked.increment();
        } else if !is_timer {
            return;
        }
        self.peer.send_oneway(RequestBody::Match { dst_qpn: self.qpn });
    }

    /// Returns whether the target is a queue pair of this process.
    fn is_own(&self, core: &QpCore) -> bool {
        self.peer.instance == core.shm.process.instance
    }

    /// Returns the target in this process whose receives must be matched after the send side has been left.
    pub(crate) fn take_due_match(&mut self) -> Option<u32> {
        let is_due = std::mem::take(&mut self.in_flight.must_match);
        self.in_flight.has_matched |= is_due;
        is_due.then_some(self.qpn)
    }

    /// Like [`Initiator::on_empty_poll`], for an application thread that does not poll again before it is woken.
    pub(crate) fn on_app_sleep(&mut self, core: &QpCore) {
        if self.is_unmatched() && self.in_flight.polls < POLLS_BEFORE_REQUEST {
            self.in_flight.polls = POLLS_BEFORE_REQUEST;
            core.stats.matches_asked.increment();
            self.peer.send_oneway(RequestBody::Match { dst_qpn: self.qpn });
        }
    }

    /// Publishes small messages after the one in flight, as many as fit, but at most `limit` in total.
    pub(crate) fn publish_more(&mut self, core: &QpCore, waiting: &WaitQueue, limit: usize) {
        while self.in_flight.count > 0
            && self.in_flight.count < limit
            && let Some(queued) = waiting.get(self.in_flight.count)
        {
            let request = queued.request(&queued.target, &queued.sges);
            let is_small_send = matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM)
                && request.len_bytes <= EAGER_BYTES;
            // A request that is not permitted fails when it is the oldest.
            if !is_small_send || !request.is_allowed(&core.shm.process.regions, core.pd) {
                break;
            }
            if !self.producer.has_room(request.len_bytes as usize, 0) {
                break;
            }
            let flags = request.record_flags();
            // SAFETY: by the contract of `RawQp::post_send` the request's memory is readable until its completion is
            // polled.
            unsafe { self.publish_eager(&request, flags) };
            self.in_flight.count += 1;
            self.unannounced = true;
            self.solicited |= flags & SOLICITED != 0;
        }
    }
}
