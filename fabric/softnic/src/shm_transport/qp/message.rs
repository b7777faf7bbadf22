//! Operations that consume a receive of the target: SEND and WRITE with immediate. Small messages are sent inside the
//! ring. Large messages are written directly to the receive that the target has advertised.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use farcall_shm::hazard;
use farcall_shm::ring::{GREETING, Kind, RQ_POSTED, UNCHECKED_RECEIVES};
use farcall_verbs::{Access, SendFlags, WcStatus, WrOpcode};

use super::MAX_SGE;
use super::initiator::{CachedRegion, Initiator};
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::transfer::{gather_to_pieces, gather_to_ring};
use crate::process::PeerReply;
use crate::process::rendezvous::RequestBody;

/// Maximum size of messages that are sent inside the ring. Two small copies cost less than the lookup of the receive's
/// region.
pub(crate) const EAGER_BYTES: u64 = 1024;

impl Initiator {
    /// Executes a SEND or WRITE with immediate.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    pub(crate) unsafe fn message(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        // SAFETY: by the contract of this function the request's memory is valid, as `try_message` requires.
        let outcome = unsafe { self.try_message(request) };
        let must_announce = match outcome {
            ExecuteOutcome::Done | ExecuteOutcome::Published => true,
            // The target's receive fails too, so the target must be notified.
            ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR) => self.is_reliable,
            _ => false,
        };
        if must_announce {
            if self.sent == 1 {
                self.notify_first_message();
            }
            self.unannounced = true;
            self.solicited |= request.flags.contains(SendFlags::SOLICITED);
        }
        outcome
    }

    /// Called after the first message. A target that is not ready to send yet may wait for the event (COMM_EST) without
    /// polling.
    #[cold]
    fn notify_first_message(&self) {
        if self.inbound().load(GREETING, Acquire) != 0 {
            self.peer.send_oneway(RequestBody::Match { dst_qpn: self.qpn });
        }
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    unsafe fn try_message(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        if !self.has_posted_receive() {
            if self.layout.shared {
                // SAFETY: by the contract of this function the request's memory is valid, as `shared_message` requires.
                return unsafe { self.shared_message(request) };
            }
            // A target that is not ready to receive does not respond at all, regardless of its posted receives.
            return ExecuteOutcome::Wait(if self.accepts().is_some() {
                WaitReason::Receiver
            } else {
                WaitReason::Peer
            });
        }
        // SAFETY: by the contract of this function the request's memory is valid, as the callees require.
        unsafe {
            match request.opcode {
                WrOpcode::WRITE_WITH_IMM => self.write_with_imm(request),
                _ => self.send(request),
            }
        }
    }

    /// Returns whether the target has a receive for the next message.
    #[inline]
    fn has_posted_receive(&mut self) -> bool {
        if self.sent < self.posted_seen {
            return true;
        }
        self.posted_seen = self.inbound().load(RQ_POSTED, Acquire);
        // The consumer's position is on the same cache line.
        self.producer.load_head();
        self.sent < self.posted_seen
    }

    /// Returns whether the sender must check that the next receive is writable under its keys. Over UC the sender
    /// receives no report of it.
    #[inline]
    fn must_check_receive(&self) -> bool {
        self.sent < self.inbound().load(UNCHECKED_RECEIVES, Relaxed) && self.is_reliable
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    unsafe fn write_with_imm(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        if !self.producer.has_room(0, 0) {
            return ExecuteOutcome::Wait(WaitReason::Receiver);
        }
        // SAFETY: by the contract of this function the request's memory is valid, as `write_and_publish` requires.
        let outcome = unsafe { self.write_and_publish(request) };
        self.sent += u64::from(matches!(outcome, ExecuteOutcome::Done));
        outcome
    }

    /// Executes a WRITE with immediate: writes, and publishes the record if that succeeded. The ring must have a free
    /// slot.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    pub(super) unsafe fn write_and_publish(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        // SAFETY: by the contract of this function the request's memory is valid, as `write` requires.
        let outcome = unsafe { self.write(request) };
        if let ExecuteOutcome::Done = outcome {
            let (flags, len) = (request.record_flags(), request.len_bytes as u32);
            self.producer.publish_empty(Kind::WriteImm, flags, len, request.imm_be);
        }
        outcome
    }

    /// Publishes a SEND with its payload in the ring. The ring must have space for it.
    ///
    /// # Safety
    /// The elements must be readable.
    #[inline]
    pub(super) unsafe fn publish_eager(&mut self, request: &Request<'_>, flags: u8) {
        let (at, len) = (self.producer.payload_at(), request.len_bytes as u32);
        // SAFETY: by the contract of this function the elements are readable.
        unsafe { gather_to_ring(self.inbound(), at, request.sges) };
        self.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
    }

    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    unsafe fn send(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        let (flags, len) = (request.record_flags(), request.len_bytes as u32);
        hazard::enter(self.inbound(), hazard::RECEIVES);
        let outcome = if self.accepts().is_none() {
            ExecuteOutcome::Wait(WaitReason::Peer)
        } else if request.len_bytes > advertised_bytes(self, request.len_bytes) {
            if !self.is_reliable {
                ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR)
            } else if self.producer.has_room(0, 0) {
                self.producer.publish_empty(Kind::TooLong, flags, len, request.imm_be);
                self.note_violation(Kind::TooLong);
                self.sent += 1;
                ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR)
            } else {
                ExecuteOutcome::Wait(WaitReason::Receiver)
            }
        // One slot must remain free for every receive that the target may post before it polls.
        } else if request.len_bytes <= EAGER_BYTES
            && !self.must_check_receive()
            && self.producer.has_room(len as usize, self.layout.rq_depth.into())
        {
            // SAFETY: by the contract of this function the elements are readable.
            unsafe { self.publish_eager(request, flags) };
            self.sent += 1;
            ExecuteOutcome::Done
        } else if self.producer.has_room(0, 0) {
            // SAFETY: by the contract of this function the elements are valid; the hazard is published, and the ring
            // has a free slot.
            match unsafe { place(self, request, flags) } {
                Some(outcome) => outcome,
                None => {
                    hazard::leave(self.inbound());
                    // SAFETY: by the contract of this function the request's memory is valid, as `place_unmapped`
                    // requires.
                    return unsafe { self.place_unmapped(request, flags) };
                }
            }
        } else {
            ExecuteOutcome::Wait(WaitReason::Receiver)
        };
        hazard::leave(self.inbound());
        outcome
    }
}

/// Returns one advertised scatter element: address, length, key.
pub(crate) fn advert(initiator: &Initiator, sge: u8) -> (u64, u32, u32) {
    let at = initiator.layout.advert_at(initiator.sent, sge);
    let addr = initiator.inbound().load(at, Relaxed);
    let word = initiator.inbound().load(at + 8, Relaxed);
    (addr, word as u32, (word >> 32) as u32)
}

/// Returns the capacity of the next receive in bytes, or a lower bound of at least `enough`.
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

/// Writes a message to the advertised receive (a rendezvous that the receiver has begun by posting). Returns `None` and
/// does nothing if some of its memory is not mapped here.
///
/// # Safety
/// The request's elements must be readable. A hazard must be published, and the ring must have a free slot.
pub(crate) unsafe fn place(
    initiator: &mut Initiator,
    request: &Request<'_>,
    flags: u8,
) -> Option<ExecuteOutcome> {
    let mut segments = [(std::ptr::null_mut(), 0_usize); MAX_SGE];
    // Keeps the mappings alive during the copy: the cache may evict one in favour of the next.
    let mut regions = [const { None }; MAX_SGE];
    let (mut count, mut left) = (0, request.len_bytes);
    for sge in 0..initiator.layout.recv_sge.min(MAX_SGE as u8) {
        let (addr, room, key) = advert(initiator, sge);
        let len = left.min(room.into());
        if len == 0 {
            continue;
        }
        let at = match initiator.find_region(key, true) {
            PeerReply::Granted(CachedRegion::Mapped(at)) => at,
            PeerReply::Granted(CachedRegion::Unmapped(_)) => return None,
            PeerReply::Refused(_) => return Some(ExecuteOutcome::Failed(WcStatus::REM_OP_ERR)),
            PeerReply::Pending => return Some(ExecuteOutcome::Wait(WaitReason::PeerReply)),
        };
        let region = initiator.cached(at).clone();
        let place = region.locate(addr, len);
        if place.is_none() && region.whole.is_some() {
            return None;
        }
        if !region.is_current(&initiator.peer) {
            // Requested again by the next attempt.
            initiator.forget(at);
            return Some(ExecuteOutcome::Wait(WaitReason::PeerReply));
        }
        // It may have been re-registered since the receive was posted: at another address, or without write permission.
        let Some(place) = place.filter(|_| region.access.contains(Access::LOCAL_WRITE)) else {
            return Some(ExecuteOutcome::Failed(WcStatus::REM_OP_ERR));
        };
        segments[count] = (place, len as usize);
        regions[count] = Some(region);
        count += 1;
        left -= len;
    }
    if left > 0 {
        return Some(ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR));
    }
    // SAFETY: `locate` found each piece inside a mapped region, and `regions` keeps these mappings alive. By the
    // contract of `post_recv` no reference exists to memory posted as a receive, and the pieces hold
    // `request.len_bytes` bytes. By the contract of this function the elements are readable.
    unsafe { gather_to_pieces(request.sges, &segments[..count]) };
    publish_placed(initiator, request, flags);
    Some(ExecuteOutcome::Done)
}

/// Notifies the target that its receive is filled. A hazard must be published, and the ring must have a free slot.
pub(crate) fn publish_placed(initiator: &mut Initiator, request: &Request<'_>, flags: u8) {
    initiator.producer.publish_empty(Kind::SendPlaced, flags, request.len_bytes as u32, request.imm_be);
    initiator.sent += 1;
}
