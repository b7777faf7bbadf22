//! What consumes a receive of the target: SEND and WRITE with immediate. Small messages travel inside the ring; large
//! ones are placed into the receive that the target has advertised.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use farcall_shm::hazard;
use farcall_shm::ring::{GREETING, Kind, RQ_POSTED, UNCHECKED_RECEIVES};
use farcall_verbs::{Access, SendFlags, WcStatus, WrOpcode};

use super::MAX_SGE;
use super::initiator::{CachedRegion, Initiator};
use super::request::{Request, Step};
use super::transfer::{gather_to_pieces, gather_to_ring};
use super::wait_queue::Wait;
use crate::life::Answer;
use crate::life::rendezvous::RequestBody;

/// Messages up to this size travel inside the ring: two small copies cost less than finding the receive's region.
pub(crate) const EAGER_BYTES: u64 = 1024;

impl Initiator {
    /// SEND and WRITE with immediate: what consumes a receive.
    ///
    /// # Safety
    /// See `execute`.
    pub(crate) unsafe fn message(&mut self, request: &Request<'_>) -> Step {
        // SAFETY: the poster's promise, passed on.
        let step = unsafe { self.try_message(request) };
        let is_told = match step {
            Step::Done | Step::Published => true,
            // The target's receive fails too.
            Step::Failed(WcStatus::REM_INV_REQ_ERR) => self.is_reliable,
            _ => false,
        };
        if is_told {
            if self.sent == 1 {
                self.greet();
            }
            self.unannounced = true;
            self.solicited |= request.flags.contains(SendFlags::SOLICITED);
        }
        step
    }

    /// After the first message: a target that is not ready to send yet may wait for the event that tells it
    /// (COMM_EST), and not poll.
    #[cold]
    fn greet(&self) {
        if self.inbound().load(GREETING, Acquire) != 0 {
            self.peer.tell(RequestBody::Match { dst_qpn: self.qpn });
        }
    }

    /// # Safety
    /// See `execute`.
    unsafe fn try_message(&mut self, request: &Request<'_>) -> Step {
        if !self.receive_is_posted() {
            if self.layout.shared {
                // SAFETY: the poster's promise, passed on.
                return unsafe { self.shared_message(request) };
            }
            // A target that is not ready to receive does not answer at all, whatever it has posted.
            return Step::Wait(if self.accepts().is_some() { Wait::Receiver } else { Wait::Peer });
        }
        // SAFETY: the poster's promise, passed on.
        unsafe {
            match request.opcode {
                WrOpcode::WRITE_WITH_IMM => self.write_with_imm(request),
                _ => self.send(request),
            }
        }
    }

    /// Whether the target has a receive for our next message.
    #[inline]
    fn receive_is_posted(&mut self) -> bool {
        if self.sent < self.posted_seen {
            return true;
        }
        self.posted_seen = self.inbound().load(RQ_POSTED, Acquire);
        // It lies beside that.
        self.producer.look_at_head();
        self.sent < self.posted_seen
    }

    /// Whether the memory of the next receive may not be writable under its keys, so that the sender must find out. Over
    /// UC the sender learns nothing of it.
    #[inline]
    fn must_check_receive(&self) -> bool {
        self.sent < self.inbound().load(UNCHECKED_RECEIVES, Relaxed) && self.is_reliable
    }

    /// # Safety
    /// See `execute`.
    unsafe fn write_with_imm(&mut self, request: &Request<'_>) -> Step {
        if !self.producer.has_room(0, 0) {
            return Step::Wait(Wait::Receiver);
        }
        // SAFETY: the poster's promise, passed on.
        let step = unsafe { self.write_and_publish(request) };
        self.sent += u64::from(matches!(step, Step::Done));
        step
    }

    /// Writes, and if that is done publishes the record of a WRITE with immediate. Call with room for a record.
    ///
    /// # Safety
    /// See `execute`.
    pub(super) unsafe fn write_and_publish(&mut self, request: &Request<'_>) -> Step {
        // SAFETY: the poster's promise, passed on.
        let step = unsafe { self.write(request) };
        if let Step::Done = step {
            let (flags, len) = (request.record_flags(), request.len_bytes as u32);
            self.producer.publish_empty(Kind::WriteImm, flags, len, request.imm_be);
        }
        step
    }

    /// Publishes a SEND with its payload in the ring. Call with room for it.
    ///
    /// # Safety
    /// The elements must be readable.
    #[inline]
    pub(super) unsafe fn publish_eager(&mut self, request: &Request<'_>, flags: u8) {
        let (at, len) = (self.producer.payload_at(), request.len_bytes as u32);
        // SAFETY: the caller's promise.
        unsafe { gather_to_ring(self.inbound(), at, request.sges) };
        self.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
    }

    /// # Safety
    /// See `execute`.
    unsafe fn send(&mut self, request: &Request<'_>) -> Step {
        let (flags, len) = (request.record_flags(), request.len_bytes as u32);
        hazard::enter(self.inbound(), hazard::RECEIVES);
        let step = if self.accepts().is_none() {
            Step::Wait(Wait::Peer)
        } else if request.len_bytes > advertised_bytes(self, request.len_bytes) {
            if !self.is_reliable {
                Step::Failed(WcStatus::REM_INV_REQ_ERR)
            } else if self.producer.has_room(0, 0) {
                self.producer.publish_empty(Kind::TooLong, flags, len, request.imm_be);
                self.note_violation(Kind::TooLong);
                self.sent += 1;
                Step::Failed(WcStatus::REM_INV_REQ_ERR)
            } else {
                Step::Wait(Wait::Receiver)
            }
        // A slot stays free for every receive that the target may post before it polls.
        } else if request.len_bytes <= EAGER_BYTES
            && !self.must_check_receive()
            && self.producer.has_room(len as usize, self.layout.rq_depth.into())
        {
            // SAFETY: the elements are the poster's promise; the ring has room.
            unsafe { self.publish_eager(request, flags) };
            self.sent += 1;
            Step::Done
        } else if self.producer.has_room(0, 0) {
            // SAFETY: the poster's promise, passed on.
            match unsafe { place(self, request, flags) } {
                Some(step) => step,
                None => {
                    hazard::leave(self.inbound());
                    // SAFETY: as above.
                    return unsafe { self.place_private(request, flags) };
                }
            }
        } else {
            Step::Wait(Wait::Receiver)
        };
        hazard::leave(self.inbound());
        step
    }
}

/// One advertised scatter element: address, length, key.
pub(crate) fn advert(initiator: &Initiator, sge: u8) -> (u64, u32, u32) {
    let at = initiator.layout.advert_at(initiator.sent, sge);
    let addr = initiator.inbound().load(at, Relaxed);
    let word = initiator.inbound().load(at + 8, Relaxed);
    (addr, word as u32, (word >> 32) as u32)
}

/// Bytes that the next receive has room for; stops counting at `enough`.
#[inline]
fn advertised_bytes(initiator: &Initiator, enough: u64) -> u64 {
    let mut sum = 0;
    for sge in 0..initiator.layout.recv_sge {
        if sum >= enough {
            break;
        }
        sum += u64::from(advert(initiator, sge).1);
    }
    sum
}

/// Places a message into the advertised receive (a rendezvous that the receiver has begun by posting). `None`, and
/// nothing done: some of its memory is not mapped here.
///
/// # Safety
/// The request's memory is the poster's promise. Call inside a hazard, with room for a record.
pub(crate) unsafe fn place(initiator: &mut Initiator, request: &Request<'_>, flags: u8) -> Option<Step> {
    let mut pieces = [(std::ptr::null_mut(), 0_usize); MAX_SGE];
    // Keeps the mappings while we copy: the cache may give one up for the next.
    let mut held = [const { None }; MAX_SGE];
    let (mut count, mut left) = (0, request.len_bytes);
    for sge in 0..initiator.layout.recv_sge.min(MAX_SGE as u8) {
        let (addr, room, key) = advert(initiator, sge);
        let len = left.min(room.into());
        if len == 0 {
            continue;
        }
        let at = match initiator.find_region(key, true) {
            Answer::Granted(CachedRegion::Mapped(at)) => at,
            Answer::Granted(CachedRegion::Private(_)) => return None,
            Answer::Refused(_) => return Some(Step::Failed(WcStatus::REM_OP_ERR)),
            Answer::NotYet => return Some(Step::Wait(Wait::Answer)),
        };
        let region = initiator.cached(at).clone();
        let place = region.locate(addr, len);
        if place.is_none() && region.whole.is_some() {
            return None;
        }
        if !region.is_current(&initiator.peer) {
            // Asked for anew, in the next attempt.
            initiator.forget(at);
            return Some(Step::Wait(Wait::Answer));
        }
        // It may have been registered anew since the receive was posted: elsewhere, or not to be written to.
        let Some(place) = place.filter(|_| region.access.contains(Access::LOCAL_WRITE)) else {
            return Some(Step::Failed(WcStatus::REM_OP_ERR));
        };
        pieces[count] = (place, len as usize);
        held[count] = Some(region);
        count += 1;
        left -= len;
    }
    if left > 0 {
        return Some(Step::Failed(WcStatus::REM_INV_REQ_ERR));
    }
    // SAFETY: the pieces are located in mapped regions, which `held` keeps mapped.
    unsafe { gather_to_pieces(request.sges, &pieces[..count]) };
    publish_placed(initiator, request, flags);
    Some(Step::Done)
}

/// Tells the target that its receive is filled. Call inside a hazard, with room for a record.
pub(crate) fn publish_placed(initiator: &mut Initiator, request: &Request<'_>, flags: u8) {
    initiator.producer.publish_empty(Kind::SendPlaced, flags, request.len_bytes as u32, request.imm_be);
    initiator.sent += 1;
}
