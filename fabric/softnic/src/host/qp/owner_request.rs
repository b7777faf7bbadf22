//! A request that the target's service thread executes: to memory that only its owner reaches, and atomics on memory
//! that is not mapped here. One access after the other, as far as answers come; what is left waits like any request.

use farcall_shm::{Segment, copy_plain};
use farcall_verbs::{Sge, WcStatus};

use super::initiator::Initiator;
use super::request::Step;
use super::transfer::pointer;
use super::wait_queue::Wait;
use crate::host::owner_access::ACCESS_BYTES;
use crate::life::rendezvous::{Access, Operation, Refusal, ReplyBody, RequestBody};
use crate::life::{Answer, Interest, Peer};

/// Memory of the target.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
}

/// How far the oldest request has come.
#[derive(Default)]
pub(crate) struct OwnerRequest {
    /// Where bytes travel.
    window: Option<Segment>,
    /// Asked for, and not yet answered.
    asked: Option<Access>,
    done_bytes: u64,
    number: u32,
    /// What an atomic found.
    found: Option<u64>,
    /// A part was moved since that was asked last.
    has_progressed: bool,
}

/// Where an access is asked for, and for whom.
#[derive(Clone, Copy)]
struct At<'a> {
    peer: &'a Peer,
    interest: &'a Interest,
    dst_qpn: u32,
    life: u32,
}

/// A part of a transfer that one access moves.
struct Part {
    rkey: u32,
    addr: u64,
    len_bytes: u32,
}

/// The next part of `targets` after `done_bytes`; `None` if that is all.
fn next_part(targets: &[Target], mut done_bytes: u64) -> Option<Part> {
    for target in targets {
        if done_bytes < target.len_bytes {
            let len_bytes = (target.len_bytes - done_bytes).min(ACCESS_BYTES.into()) as u32;
            return Some(Part { rkey: target.rkey, addr: target.addr + done_bytes, len_bytes });
        }
        done_bytes -= target.len_bytes;
    }
    None
}

/// Gives `visit` the pieces of the elements that hold the bytes from `skip` on, `len_bytes` of them, and the offset of
/// each from `skip`.
fn for_pieces(sges: &[Sge], mut skip: u64, len_bytes: u64, mut visit: impl FnMut(*mut u8, usize, usize)) {
    let mut done = 0;
    for sge in sges {
        let len = u64::from(sge.length);
        if skip >= len {
            skip -= len;
            continue;
        }
        let now = (len - skip).min(len_bytes - done);
        visit(pointer(sge).wrapping_add(skip as usize), now as usize, done as usize);
        done += now;
        skip = 0;
        if done == len_bytes {
            break;
        }
    }
}

impl OwnerRequest {
    pub(crate) fn take_found(&mut self) -> Option<u64> {
        self.found.take()
    }

    /// Whether a part was moved since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progressed)
    }

    /// Whether an answer is awaited.
    pub(crate) fn is_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// Gives up what is under way. The owner may still use the window: it is not used again.
    fn abandon(&mut self) {
        if self.asked.take().is_some() {
            self.window = None;
        }
        self.done_bytes = 0;
        self.found = None;
    }

    /// Asks for one access, or for its answer.
    fn ask(&mut self, at: At<'_>, part: &Part, operation: Operation) -> Answer<u64> {
        let access = *self.asked.get_or_insert_with(|| {
            self.number = self.number.wrapping_add(1);
            Access {
                dst_qpn: at.dst_qpn,
                life: at.life,
                number: self.number,
                rkey: part.rkey,
                addr: part.addr,
                len_bytes: part.len_bytes,
                operation,
            }
        });
        let fds = self.window.as_ref().map(Segment::fd);
        let answer = match at.peer.ask(at.interest, RequestBody::Access(access), fds.as_slice()) {
            Answer::Granted((ReplyBody::Access { value }, _)) => Answer::Granted(value),
            Answer::Granted(_) => Answer::Refused(Refusal::Malformed),
            Answer::Refused(reason) => Answer::Refused(reason),
            Answer::NotYet => return Answer::NotYet,
        };
        self.asked = None;
        answer
    }
}

/// What a refusal means for the request.
fn ended(reason: Refusal) -> Step {
    match reason {
        Refusal::UnknownKey => Step::Failed(WcStatus::REM_ACCESS_ERR),
        Refusal::Invalid => Step::Failed(WcStatus::REM_INV_REQ_ERR),
        Refusal::Fault => Step::Failed(WcStatus::REM_OP_ERR),
        // The pair is not, or no longer, ready for us.
        _ => Step::Wait(Wait::Peer),
    }
}

impl Initiator {
    /// Gives up the oldest request: no answer that still comes is for anything later.
    pub(crate) fn abandon(&mut self) {
        self.interest = Interest::default();
        self.owner_request.abandon();
    }

    fn at_owner(&mut self) -> (&mut OwnerRequest, At<'_>) {
        let (dst_qpn, life) = (self.qpn, self.life);
        let at = At { peer: &self.peer, interest: &self.interest, dst_qpn, life };
        (&mut self.owner_request, at)
    }

    /// An atomic; what it finds is left in `owner_request`.
    pub(crate) fn ask_owner_for_atomic(&mut self, target: Target, operation: Operation) -> Step {
        let part = Part { rkey: target.rkey, addr: target.addr, len_bytes: target.len_bytes as u32 };
        let (request, at) = self.at_owner();
        // Nothing travels in it.
        request.window = None;
        match request.ask(at, &part, operation) {
            Answer::Granted(found) => {
                request.found = Some(found);
                Step::Done
            }
            Answer::Refused(reason) => ended(reason),
            Answer::NotYet => Step::Wait(Wait::Answer),
        }
    }

    /// Moves all bytes between the elements and the targets.
    ///
    /// # Safety
    /// The elements are the poster's promise.
    pub(crate) unsafe fn ask_owner_to_move(
        &mut self,
        sges: &[Sge],
        targets: &[Target],
        operation: Operation,
    ) -> Step {
        let (state, at) = self.at_owner();
        while let Some(part) = next_part(targets, state.done_bytes) {
            let len = u64::from(part.len_bytes);
            if state.window.is_none() {
                let Ok(window) = Segment::create("farcall-window", ACCESS_BYTES as usize) else {
                    return Step::Failed(WcStatus::LOC_QP_OP_ERR);
                };
                state.window = Some(window);
            }
            let Some(window) = state.window.as_ref().map(Segment::memory) else { break };
            if state.asked.is_none() && operation != Operation::Read {
                for_pieces(sges, state.done_bytes, len, |piece, len, at| {
                    // SAFETY: the element is the poster's promise; the window checks its bounds.
                    unsafe { window.copy_in_raw(at, piece, len) };
                });
            }
            match state.ask(at, &part, operation) {
                Answer::Granted(_) if operation == Operation::Read => {
                    for_pieces(sges, state.done_bytes, len, |piece, len, at| {
                        // SAFETY: as above.
                        unsafe { copy_plain(piece, window.range(at, len).cast_const(), len) };
                    });
                }
                Answer::Granted(_) => {}
                Answer::Refused(reason) => {
                    state.done_bytes = 0;
                    return ended(reason);
                }
                Answer::NotYet => return Step::Wait(Wait::Answer),
            }
            state.done_bytes += len;
            // It goes on: what is left may take as long again.
            state.has_progressed = true;
        }
        state.done_bytes = 0;
        Step::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_targets() {
        let target = |rkey, addr, len_bytes| Target { rkey, addr, len_bytes };
        let targets = [target(1, 1000, 10), target(2, 0, 0), target(3, 5000, u64::from(ACCESS_BYTES) + 1)];
        let part = |done| next_part(&targets, done).map(|part| (part.rkey, part.addr, part.len_bytes));
        assert_eq!(part(0), Some((1, 1000, 10)));
        assert_eq!(part(10), Some((3, 5000, ACCESS_BYTES)));
        let most = u64::from(ACCESS_BYTES);
        assert_eq!(part(10 + most), Some((3, 5000 + most, 1)));
        assert_eq!(part(11 + most), None);
    }

    #[test]
    fn pieces_follow_the_elements() {
        let sge = |addr, length| Sge { addr, length, lkey: 0 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 10)];
        let mut seen = Vec::new();
        for_pieces(&sges, 5, 10, |piece, len, at| seen.push((piece as u64, len, at)));
        assert_eq!(seen, [(105, 5, 0), (300, 5, 5)]);
    }
}
