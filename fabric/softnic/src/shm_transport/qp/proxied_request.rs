//! Requests that the target's service thread executes: accesses to memory that only the target can reach, and atomics
//! on memory that is not mapped here. A request is split into accesses, which are executed one after the other as
//! replies arrive; until the last one the request waits like any other.

use farcall_shm::{Segment, copy_plain};
use farcall_verbs::{Sge, WcStatus};

use super::request::{ExecuteOutcome, WaitReason};
use super::transfer::pointer;
use crate::process::rendezvous::{Access, Operation, Refusal, ReplyBody, RequestBody};
use crate::process::{Peer, PeerReply, ReplyInterest};

/// Maximum number of bytes per access. It bounds the time for which the service thread is busy with one access.
pub(crate) const ACCESS_BYTES: u32 = 128 << 10;

/// A range of the target's memory.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
}

/// Progress of the oldest request.
#[derive(Default)]
pub(crate) struct ProxiedRequest {
    /// Memfd through which the bytes are transferred.
    window: Option<Segment>,
    /// Access that was requested and has no reply yet.
    requested: Option<Access>,
    done_bytes: u64,
    number: u32,
    /// Previous value returned by an atomic.
    previous_value: Option<u64>,
    /// `true` if a chunk was transferred since the last call of `take_progress`.
    made_progress: bool,
}

/// Destination of an access request, and the queue pair that sends it.
#[derive(Clone, Copy)]
pub(super) struct AccessTarget<'a> {
    pub(super) peer: &'a Peer,
    pub(super) interest: &'a ReplyInterest,
    pub(super) dst_qpn: u32,
    pub(super) incarnation: u32,
}

/// Chunk of a transfer: the bytes that one access moves.
struct TransferChunk {
    rkey: u32,
    addr: u64,
    len_bytes: u32,
}

/// Returns the next chunk of `targets` after `done_bytes`; `None` if all chunks are done.
fn next_chunk(targets: &[Target], mut done_bytes: u64) -> Option<TransferChunk> {
    for target in targets {
        if done_bytes < target.len_bytes {
            let len_bytes = (target.len_bytes - done_bytes).min(ACCESS_BYTES.into()) as u32;
            return Some(TransferChunk { rkey: target.rkey, addr: target.addr + done_bytes, len_bytes });
        }
        done_bytes -= target.len_bytes;
    }
    None
}

/// Calls `visit` for each section of the elements that holds some of the `len_bytes` bytes from offset `skip`. Passes
/// address, length and offset from `skip`.
fn for_segments(sges: &[Sge], mut skip: u64, len_bytes: u64, mut visit: impl FnMut(*mut u8, usize, usize)) {
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

impl ProxiedRequest {
    pub(crate) fn take_previous_value(&mut self) -> Option<u64> {
        self.previous_value.take()
    }

    /// Returns whether a chunk was transferred since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.made_progress)
    }

    /// Returns whether a reply is outstanding.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.requested.is_some()
    }

    /// Abandons the access in progress. The target may still use the window, so it is not used again.
    pub(super) fn abandon(&mut self) {
        if self.requested.take().is_some() {
            self.window = None;
        }
        self.done_bytes = 0;
        self.previous_value = None;
    }

    /// Requests one access, or checks for its reply.
    fn request(
        &mut self,
        at: AccessTarget<'_>,
        chunk: &TransferChunk,
        operation: Operation,
    ) -> PeerReply<u64> {
        let access = *self.requested.get_or_insert_with(|| {
            self.number = self.number.wrapping_add(1);
            Access {
                dst_qpn: at.dst_qpn,
                incarnation: at.incarnation,
                number: self.number,
                rkey: chunk.rkey,
                addr: chunk.addr,
                len_bytes: chunk.len_bytes,
                operation,
            }
        });
        let fds = self.window.as_ref().map(Segment::fd);
        let reply = match at.peer.request(at.interest, RequestBody::Access(access), fds.as_slice()) {
            PeerReply::Granted((ReplyBody::Access { value }, _)) => PeerReply::Granted(value),
            PeerReply::Granted(_) => PeerReply::Refused(Refusal::Malformed),
            PeerReply::Refused(reason) => PeerReply::Refused(reason),
            PeerReply::Pending => return PeerReply::Pending,
        };
        self.requested = None;
        reply
    }

    /// Requests an atomic, and stores its previous value.
    pub(super) fn atomic(
        &mut self,
        at: AccessTarget<'_>,
        target: Target,
        operation: Operation,
    ) -> ExecuteOutcome {
        let chunk =
            TransferChunk { rkey: target.rkey, addr: target.addr, len_bytes: target.len_bytes as u32 };
        // An atomic transfers no bytes through the window.
        self.window = None;
        match self.request(at, &chunk, operation) {
            PeerReply::Granted(previous_value) => {
                self.previous_value = Some(previous_value);
                ExecuteOutcome::Done
            }
            PeerReply::Refused(reason) => failure(reason),
            PeerReply::Pending => ExecuteOutcome::Wait(WaitReason::PeerReply),
        }
    }

    /// Transfers all bytes between the elements and the targets.
    ///
    /// # Safety
    /// The elements must be valid and unreferenced until the request completes: readable, or writable if `operation` is
    /// a READ.
    pub(super) unsafe fn transfer(
        &mut self,
        at: AccessTarget<'_>,
        sges: &[Sge],
        targets: &[Target],
        operation: Operation,
    ) -> ExecuteOutcome {
        while let Some(chunk) = next_chunk(targets, self.done_bytes) {
            let len = u64::from(chunk.len_bytes);
            if self.window.is_none() {
                let Ok(window) = Segment::create("farcall-window", ACCESS_BYTES as usize) else {
                    return ExecuteOutcome::Failed(WcStatus::LOC_QP_OP_ERR);
                };
                self.window = Some(window);
            }
            let Some(window) = self.window.as_ref().map(Segment::memory) else { break };
            if self.requested.is_none() && operation != Operation::Read {
                for_segments(sges, self.done_bytes, len, |piece, len, at| {
                    // SAFETY: by the contract of this function the element is readable; `copy_in_raw` checks the
                    // window's bounds.
                    unsafe { window.copy_in_raw(at, piece, len) };
                });
            }
            match self.request(at, &chunk, operation) {
                PeerReply::Granted(_) if operation == Operation::Read => {
                    for_segments(sges, self.done_bytes, len, |piece, len, at| {
                        // SAFETY: by the contract of this function the element is writable; `range` checks the window's
                        // bounds.
                        unsafe { copy_plain(piece, window.range(at, len).cast_const(), len) };
                    });
                }
                PeerReply::Granted(_) => {}
                PeerReply::Refused(reason) => {
                    self.done_bytes = 0;
                    return failure(reason);
                }
                PeerReply::Pending => return ExecuteOutcome::Wait(WaitReason::PeerReply),
            }
            self.done_bytes += len;
            // Each chunk is allowed the full waiting time.
            self.made_progress = true;
        }
        self.done_bytes = 0;
        ExecuteOutcome::Done
    }
}

/// Returns the effect of a refusal on the request.
fn failure(reason: Refusal) -> ExecuteOutcome {
    match reason {
        Refusal::UnknownKey => ExecuteOutcome::Failed(WcStatus::REM_ACCESS_ERR),
        Refusal::Invalid => ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR),
        Refusal::Fault => ExecuteOutcome::Failed(WcStatus::REM_OP_ERR),
        // The queue pair is not ready for this one yet, or no longer.
        _ => ExecuteOutcome::Wait(WaitReason::Peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_targets() {
        let target = |rkey, addr, len_bytes| Target { rkey, addr, len_bytes };
        let targets = [target(1, 1000, 10), target(2, 0, 0), target(3, 5000, u64::from(ACCESS_BYTES) + 1)];
        let chunk = |done| next_chunk(&targets, done).map(|chunk| (chunk.rkey, chunk.addr, chunk.len_bytes));
        assert_eq!(chunk(0), Some((1, 1000, 10)));
        assert_eq!(chunk(10), Some((3, 5000, ACCESS_BYTES)));
        let most = u64::from(ACCESS_BYTES);
        assert_eq!(chunk(10 + most), Some((3, 5000 + most, 1)));
        assert_eq!(chunk(11 + most), None);
    }

    #[test]
    fn pieces_follow_the_elements() {
        let sge = |addr, length| Sge { addr, length, lkey: 0 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 10)];
        let mut seen = Vec::new();
        for_segments(&sges, 5, 10, |piece, len, at| seen.push((piece as u64, len, at)));
        assert_eq!(seen, [(105, 5, 0), (300, 5, 5)]);
    }
}
