//! Messages to a target whose receives are shared with other queue pairs, so that only the target knows whether there is
//! one (the other half is `qp::shared_receive`).
//!
//! Small messages go into the ring at once, several in flight; for a large one the target is asked for a place. All stay in
//! the wait queue until the target has accepted them, in order: later requests of other kinds must not overtake them.

use farcall_verbs::{Access, WcStatus, WrOpcode};

use super::QpCore;
use super::message::{EAGER_BYTES, place};
use super::send::{Request, SendSide, Step};
use super::transfer::{gather, gather_to_ring};
use super::wait_queue::Wait;
use crate::hazard;
use crate::ring::{Kind, NAK, OFFERED, RNR, TAKEN, TAKEN_COUNT, WITHDRAWN};
use crate::service::is_service_thread;
use crate::sync::atomic::Ordering::Acquire;

/// What is under way to a target with shared receives.
#[derive(Default)]
pub(super) struct InFlight {
    /// Messages at the front of the wait queue that the target has not accepted yet.
    pub(super) count: usize,
    /// Messages that it has accepted.
    accepted: u64,
    /// The request at the front has asked for a place.
    offer_asked: bool,
}

impl SendSide {
    /// Publishes the oldest message, as far as it can be.
    ///
    /// # Safety
    /// See `execute`.
    #[cold]
    pub(super) unsafe fn shared_message(&mut self, request: &Request<'_>) -> Step {
        let flags = Self::record_flags(request);
        let len = request.len_bytes as u32;
        if self.in_flight.offer_asked
            && let Some(refused @ Step::Failed(_)) = self.verdict()
        {
            return refused;
        }
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        if remote.accepts().is_none() {
            return Step::Wait(Wait::Peer);
        }
        if !remote.producer.has_room(if request.len_bytes <= EAGER_BYTES { len as usize } else { 0 }, 0) {
            return Step::Wait(Wait::Target);
        }
        if request.opcode == WrOpcode::WRITE_WITH_IMM {
            self.wrote = true;
            // SAFETY: as in `write`.
            let step =
                unsafe { self.one_sided(request, Access::REMOTE_WRITE, |place| gather(place, request.sges)) };
            if let (Step::Done, Some(remote)) = (&step, &mut self.remote) {
                remote.producer.payload_at();
                remote.producer.publish(Kind::WriteImm, flags, len, request.imm_be, 0);
                return Step::Published;
            }
            return step;
        }
        if request.len_bytes <= EAGER_BYTES {
            let at = remote.producer.payload_at();
            // SAFETY: the elements are the poster's promise.
            unsafe { gather_to_ring(remote.inbound(), at, request.sges) };
            remote.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
            return Step::Published;
        }
        if !std::mem::replace(&mut self.in_flight.offer_asked, true) {
            remote.producer.payload_at();
            remote.producer.publish(Kind::Offer, 0, len, 0, 0);
            self.unannounced = true;
        }
        if remote.inbound().load(OFFERED, Acquire) <= remote.sent {
            return self.verdict().unwrap_or(Step::Wait(Wait::Target));
        }
        hazard::enter(remote.inbound(), hazard::RECEIVES);
        let placed = if remote.accepts().is_some() {
            // SAFETY: the poster's promise, passed on; inside a hazard, with room for a record.
            unsafe { place(remote, request, flags) }
        } else {
            Some(Step::Wait(Wait::Peer))
        };
        hazard::leave(remote.inbound());
        let step = match placed {
            Some(step) => step,
            // SAFETY: as above.
            None => unsafe { self.place_private(request, flags) },
        };
        if let Step::Done = step {
            self.in_flight.offer_asked = false;
            return Step::Published;
        }
        step
    }

    /// What the target says of the oldest message that it has not accepted, if anything.
    fn verdict(&self) -> Option<Step> {
        let remote = self.remote.as_ref()?;
        let (nak, next) = (remote.inbound().load(NAK, Acquire), self.in_flight.accepted + 1);
        if nak >> 8 == next {
            let status = if nak as u8 == WcStatus::REM_INV_REQ_ERR.0 as u8 {
                WcStatus::REM_INV_REQ_ERR
            } else {
                WcStatus::REM_OP_ERR
            };
            return Some(Step::Failed(status));
        }
        if remote.accepts().is_none() {
            return Some(Step::Wait(Wait::Peer));
        }
        (remote.inbound().load(RNR, Acquire) == next).then_some(Step::Wait(Wait::Receiver))
    }

    /// Whether the target has accepted the oldest message in flight.
    pub(super) fn confirm(&mut self, core: &QpCore) -> Step {
        let Some(remote) = &self.remote else { return Step::Wait(Wait::Peer) };
        let accepted = remote.inbound().load(TAKEN, Acquire) & TAKEN_COUNT;
        if accepted > self.in_flight.accepted {
            self.in_flight.accepted += 1;
            self.in_flight.count -= 1;
            if let Some(parked) = self.waiting.front() {
                core.stats.executed(WrOpcode(parked.opcode), parked.len_bytes());
            }
            return Step::Done;
        }
        if remote.peer.is_dead() {
            return Step::Failed(WcStatus::RETRY_EXC_ERR);
        }
        self.verdict().unwrap_or(Step::Wait(Wait::Target))
    }

    /// Takes back what is in flight and was not accepted, for ever; false if the target has accepted more meanwhile.
    pub(super) fn withdraw(&mut self) -> bool {
        let accepted = self.in_flight.accepted;
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.layout.shared) else { return true };
        // It may have given a place that nobody uses now.
        self.unannounced = true;
        remote.inbound().compare_exchange(TAKEN, accepted, accepted | WITHDRAWN)
            || remote.inbound().load(TAKEN, Acquire) & TAKEN_COUNT <= accepted
    }

    /// From the service thread: the target's owner may do something else, so its service thread should match.
    pub(super) fn ask_to_match(&self) {
        if (self.in_flight.count > 0 || self.in_flight.offer_asked)
            && is_service_thread()
            && let Some(remote) = &self.remote
        {
            remote.peer.ask_to_match(remote.qpn());
        }
    }

    /// Publishes small messages behind the one in flight, as many as fit.
    pub(super) fn publish_more(&mut self, core: &QpCore) {
        while self.in_flight.count > 0
            && let Some(parked) = self.waiting.get(self.in_flight.count)
        {
            if self.drain.is_some_and(|drain| self.in_flight.count >= drain.left) {
                break;
            }
            let request = parked.request(&parked.target, &parked.sges);
            let is_small_send = matches!(request.opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM)
                && request.len_bytes <= EAGER_BYTES;
            // What is not allowed fails when it is its turn.
            if !is_small_send || !Self::is_allowed(core, &request) {
                break;
            }
            let (flags, len) = (Self::record_flags(&request), request.len_bytes as u32);
            let Some(remote) = &mut self.remote else { break };
            if !remote.producer.has_room(len as usize, 0) {
                break;
            }
            let at = remote.producer.payload_at();
            // SAFETY: the poster's promise holds until the request's completion.
            unsafe { gather_to_ring(remote.inbound(), at, request.sges) };
            remote.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
            self.in_flight.count += 1;
            self.unannounced = true;
            self.solicited |= flags & crate::ring::SOLICITED != 0;
        }
    }
}
