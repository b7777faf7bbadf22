//! What consumes a receive of the target: SEND and WRITE with immediate. Small messages travel inside the ring; large
//! ones are placed into the receive that the target has advertised.

use farcall_verbs::{Access, SendFlags, WcStatus, WrOpcode};

use super::remote::{Kept, Remote};
use super::send::{Request, SendSide, Step};
use super::transfer::{gather, gather_to_pieces, gather_to_ring};
use super::wait_queue::Wait;
use super::{Connected, MAX_SGE};
use crate::hazard;
use crate::peer::Asked;
use crate::ring::{self, GREETING, Kind, RQ_POSTED};
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// Messages up to this size travel inside the ring: two small copies cost less than finding the receive's region.
pub(super) const EAGER_BYTES: u64 = 1024;

impl SendSide {
    /// SEND and WRITE with immediate: what consumes a receive.
    ///
    /// # Safety
    /// See `execute`.
    pub(super) unsafe fn message(&mut self, request: &Request<'_>) -> Step {
        // SAFETY: the poster's promise, passed on.
        let step = unsafe { self.try_message(request) };
        let is_told = match step {
            Step::Done | Step::Published => true,
            // The target's receive fails too.
            Step::Failed(WcStatus::REM_INV_REQ_ERR) => self.is_reliable(),
            _ => false,
        };
        if is_told {
            if self.remote.as_ref().is_some_and(|remote| remote.sent == 1) {
                self.greet();
            }
            self.unannounced = true;
            self.solicited |= request.flags.contains(SendFlags::SOLICITED);
        }
        step
    }

    /// After the first message: a target that is not ready to send yet may wait for the event that tells it (COMM_EST), and not
    /// poll.
    #[cold]
    fn greet(&self) {
        if let Some(remote) =
            self.remote.as_ref().filter(|remote| remote.inbound().load(GREETING, Acquire) != 0)
        {
            remote.peer.ask_to_match(remote.qpn());
        }
    }

    /// # Safety
    /// See `execute`.
    unsafe fn try_message(&mut self, request: &Request<'_>) -> Step {
        if !self.receive_is_posted() {
            if self.remote.as_ref().is_some_and(|remote| remote.layout.shared) {
                // SAFETY: the poster's promise, passed on.
                return unsafe { self.shared_message(request) };
            }
            // A target that is not ready to receive does not answer at all, whatever it has posted.
            let responds = self.remote.as_ref().is_some_and(|remote| remote.accepts().is_some());
            return Step::Wait(if responds { Wait::Receiver } else { Wait::Peer });
        }
        // SAFETY: the poster's promise, passed on.
        unsafe {
            match request.opcode {
                WrOpcode::WRITE_WITH_IMM => self.write_with_imm(request),
                _ => self.send(request),
            }
        }
    }

    pub(super) fn record_flags(request: &Request<'_>) -> u8 {
        let imm = matches!(request.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM);
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        (u8::from(imm) * ring::WITH_IMM) | (u8::from(solicited) * ring::SOLICITED)
    }

    /// Whether the target has a receive for our next message.
    #[inline]
    fn receive_is_posted(&mut self) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        if remote.sent < remote.posted_seen {
            return true;
        }
        remote.posted_seen = remote.inbound().load(RQ_POSTED, Acquire);
        // It lies beside that.
        remote.producer.look_at_head();
        remote.sent < remote.posted_seen
    }

    /// # Safety
    /// See `execute`.
    unsafe fn write_with_imm(&mut self, request: &Request<'_>) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        if !remote.producer.has_room(0, 0) {
            return Step::Wait(Wait::Receiver);
        }
        self.wrote = true;
        // SAFETY: as in `write`.
        let step =
            unsafe { self.one_sided(request, Access::REMOTE_WRITE, |place| gather(place, request.sges)) };
        if let (Step::Done, Some(remote)) = (&step, &mut self.remote) {
            remote.producer.payload_at();
            let len = request.len_bytes as u32;
            remote.producer.publish(Kind::WriteImm, Self::record_flags(request), len, request.imm_be, 0);
            remote.sent += 1;
        }
        step
    }

    /// # Safety
    /// See `execute`.
    unsafe fn send(&mut self, request: &Request<'_>) -> Step {
        let Some(remote) = &mut self.remote else { return Step::Wait(Wait::Peer) };
        let (flags, len) = (Self::record_flags(request), request.len_bytes as u32);
        hazard::enter(remote.inbound(), hazard::RECEIVES);
        let step = if remote.accepts().is_none() {
            Step::Wait(Wait::Peer)
        } else if request.len_bytes > advertised_bytes(remote, request.len_bytes) {
            if self.transport == Connected::Unreliable {
                Step::Failed(WcStatus::REM_INV_REQ_ERR)
            } else if remote.producer.has_room(0, 0) {
                remote.producer.payload_at();
                remote.producer.publish(Kind::TooLong, flags, len, request.imm_be, 0);
                remote.sent += 1;
                Step::Failed(WcStatus::REM_INV_REQ_ERR)
            } else {
                Step::Wait(Wait::Receiver)
            }
        // A slot stays free for every receive that the target may post before it polls.
        } else if request.len_bytes <= EAGER_BYTES
            && remote.producer.has_room(len as usize, remote.layout.rq_depth.into())
        {
            let at = remote.producer.payload_at();
            // SAFETY: the elements are the poster's promise.
            unsafe { gather_to_ring(remote.inbound(), at, request.sges) };
            remote.producer.publish(Kind::Send, flags, len, request.imm_be, len as usize);
            remote.sent += 1;
            Step::Done
        } else if remote.producer.has_room(0, 0) {
            // SAFETY: the poster's promise, passed on.
            match unsafe { place(remote, request, flags) } {
                Some(step) => step,
                None => {
                    hazard::leave(remote.inbound());
                    // SAFETY: as above.
                    return unsafe { self.place_private(request, flags) };
                }
            }
        } else {
            Step::Wait(Wait::Receiver)
        };
        hazard::leave(remote.inbound());
        step
    }
}

/// One advertised scatter element: address, length, key.
pub(super) fn advert(remote: &Remote, sge: u8) -> (u64, u32, u32) {
    let at = remote.layout.advert_at(remote.sent, sge);
    let addr = remote.inbound().load(at, Relaxed);
    let word = remote.inbound().load(at + 8, Relaxed);
    (addr, word as u32, (word >> 32) as u32)
}

/// Bytes that the next receive has room for; stops counting at `enough`.
#[inline]
fn advertised_bytes(remote: &Remote, enough: u64) -> u64 {
    let mut sum = 0;
    for sge in 0..remote.layout.recv_sge {
        if sum >= enough {
            break;
        }
        sum += u64::from(advert(remote, sge).1);
    }
    sum
}

/// Places a message into the advertised receive (a rendezvous that the receiver has begun by posting). `None`, and
/// nothing done: some of its memory is not mapped here.
///
/// # Safety
/// The request's memory is the poster's promise. Call inside a hazard, with room for a record.
pub(super) unsafe fn place(remote: &mut Remote, request: &Request<'_>, flags: u8) -> Option<Step> {
    let mut pieces = [(std::ptr::null_mut(), 0_usize); MAX_SGE];
    // Keeps the mappings while we copy: the cache may give one up for the next.
    let mut held = [const { None }; MAX_SGE];
    let (mut count, mut left) = (0, request.len_bytes);
    for sge in 0..remote.layout.recv_sge.min(MAX_SGE as u8) {
        let (addr, room, key) = advert(remote, sge);
        let len = left.min(room.into());
        if len == 0 {
            continue;
        }
        let at = match remote.find_region(key, true) {
            Asked::Granted(Kept::Mapped(at)) => at,
            Asked::Granted(Kept::Private(_)) => return None,
            Asked::Refused(_) => return Some(Step::Failed(WcStatus::REM_OP_ERR)),
            Asked::NotYet => return Some(Step::Wait(Wait::Answer)),
        };
        let region = remote.cached(at).clone();
        let place = region.locate(addr, len);
        if place.is_none() && region.around.is_some() {
            return None;
        }
        if !region.is_current(&remote.peer) {
            // Asked for anew, in the next attempt.
            remote.forget(at);
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
    publish_placed(remote, request, flags);
    Some(Step::Done)
}

/// Tells the target that its receive is filled. Call inside a hazard, with room for a record.
pub(super) fn publish_placed(remote: &mut Remote, request: &Request<'_>, flags: u8) {
    remote.producer.payload_at();
    remote.producer.publish(Kind::SendPlaced, flags, request.len_bytes as u32, request.imm_be, 0);
    remote.sent += 1;
}
