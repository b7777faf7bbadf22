//! A request that the target's service thread executes: to memory that only its owner reaches, and atomics on memory
//! that is not mapped here. One access after the other, as far as answers come; what is left waits like any request.

use farcall_verbs::{Sge, WcStatus};

use super::remote::Remote;
use super::send::{SendSide, Step};
use super::transfer::pointer;
use super::wait_queue::Wait;
use crate::peer::{Asked, Interest};
use crate::rendezvous::{ACCESS_BYTES, Access, Operation, ReplyBody, RequestBody, refusal};
use crate::shared::{Segment, copy_plain};

/// Memory of the target.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) len_bytes: u64,
}

/// How far the oldest request has come.
#[derive(Default)]
pub(super) struct ByOwner {
    /// Where bytes travel.
    window: Option<Segment>,
    /// Asked for, and not yet answered.
    asked: Option<Access>,
    done_bytes: u64,
    number: u32,
    /// What an atomic found.
    found: Option<u64>,
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

impl ByOwner {
    pub(super) fn take_found(&mut self) -> Option<u64> {
        self.found.take()
    }

    /// Whether an answer is awaited.
    pub(super) fn is_under_way(&self) -> bool {
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
    fn ask(&mut self, remote: &Remote, part: &Part, operation: Operation) -> Asked<u64> {
        let access = *self.asked.get_or_insert_with(|| {
            self.number = self.number.wrapping_add(1);
            Access {
                dst_qpn: remote.qpn(),
                life: remote.life(),
                number: self.number,
                rkey: part.rkey,
                addr: part.addr,
                len_bytes: part.len_bytes,
                operation,
            }
        });
        let fds = self.window.as_ref().map(Segment::fd);
        let answer = match remote.peer.ask(&remote.interest, RequestBody::Access(access), fds.as_slice()) {
            Asked::Granted((ReplyBody::Access { value }, _)) => Asked::Granted(value),
            Asked::Granted(_) => Asked::Refused(refusal::MALFORMED),
            Asked::Refused(reason) => Asked::Refused(reason),
            Asked::NotYet => return Asked::NotYet,
        };
        self.asked = None;
        answer
    }
}

/// What a refusal means for the request.
fn ended(reason: u32) -> Step {
    match reason {
        refusal::UNKNOWN_KEY => Step::Failed(WcStatus::REM_ACCESS_ERR),
        refusal::INVALID => Step::Failed(WcStatus::REM_INV_REQ_ERR),
        refusal::FAULT => Step::Failed(WcStatus::REM_OP_ERR),
        // The pair is not, or no longer, ready for us.
        _ => Step::Wait(Wait::Peer),
    }
}

impl SendSide {
    /// Gives up the oldest request: no answer that still comes is for anything later.
    pub(super) fn abandon(&mut self) {
        self.gives_up = None;
        self.meeting = None;
        self.interest = Interest::default();
        if let Some(remote) = &mut self.remote {
            remote.interest = self.interest.clone();
        }
        self.by_owner.abandon();
    }

    /// An atomic; what it finds is left in `by_owner`.
    pub(super) fn atomic_by_owner(&mut self, target: Target, operation: Operation) -> Step {
        let Some(remote) = &self.remote else { return Step::Wait(Wait::Peer) };
        let part = Part { rkey: target.rkey, addr: target.addr, len_bytes: target.len_bytes as u32 };
        // Nothing travels in it.
        self.by_owner.window = None;
        match self.by_owner.ask(remote, &part, operation) {
            Asked::Granted(found) => {
                self.by_owner.found = Some(found);
                Step::Done
            }
            Asked::Refused(reason) => ended(reason),
            Asked::NotYet => Step::Wait(Wait::Answer),
        }
    }

    /// Moves all bytes between the elements and the targets.
    ///
    /// # Safety
    /// The elements are the poster's promise.
    pub(super) unsafe fn move_by_owner(
        &mut self,
        sges: &[Sge],
        targets: &[Target],
        operation: Operation,
    ) -> Step {
        let Some(remote) = &self.remote else { return Step::Wait(Wait::Peer) };
        let state = &mut self.by_owner;
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
            match state.ask(remote, &part, operation) {
                Asked::Granted(_) if operation == Operation::Read => {
                    for_pieces(sges, state.done_bytes, len, |piece, len, at| {
                        // SAFETY: as above.
                        unsafe { copy_plain(piece, window.range(at, len).cast_const(), len) };
                    });
                }
                Asked::Granted(_) => {}
                Asked::Refused(reason) => {
                    state.done_bytes = 0;
                    return ended(reason);
                }
                Asked::NotYet => return Step::Wait(Wait::Answer),
            }
            state.done_bytes += len;
            // It goes on: what is left may take as long again.
            self.gives_up = None;
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
