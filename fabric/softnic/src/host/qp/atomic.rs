//! CAS and FAA: executed by the initiator, with the processor's own atomics, in the target's mapped memory. So they are
//! atomic also against the target's processors, not only against other requests (`IBV_ATOMIC_GLOB`).

use std::sync::atomic::{Ordering, fence};

use farcall_shm::{AtomicChange, update_word};
use farcall_verbs::{ATOMIC_BYTES, Access, AtomicTarget, WcStatus, WrOpcode};

use super::initiator::Initiator;
use super::request::{Request, Step};
use super::transfer::scatter_bytes;

impl Initiator {
    /// Executes CAS or FAA; the old value goes to the local elements in host byte order.
    ///
    /// # Safety
    /// See `execute`.
    pub(crate) unsafe fn atomic(&mut self, request: &Request<'_>) -> Step {
        if request.len_bytes != ATOMIC_BYTES {
            return Step::Failed(WcStatus::LOC_LEN_ERR);
        }
        let operands = request.target.atomic();
        let word = Request { rkey: operands.rkey, len_bytes: ATOMIC_BYTES, ..*request };
        // Neither may it overtake earlier WRITEs, nor a later READ overtake what it stores.
        if std::mem::replace(&mut self.wrote, true) {
            fence(Ordering::SeqCst);
        }
        let mut old = None;
        // SAFETY: the caller's promise; `one_sided` gives an address with room for the word.
        let step = unsafe {
            self.one_sided(&word, Access::REMOTE_ATOMIC, |place| {
                old = change_word(place, request.opcode, &operands);
            })
        };
        match (step, old.or_else(|| self.owner_request.take_found())) {
            (Step::Done, Some(old)) => {
                // SAFETY: the elements are the poster's promise, and hold 8 bytes.
                unsafe { scatter_bytes(&old.to_ne_bytes(), request.sges) };
                Step::Done
            }
            // Access is judged first (IBA 9.7.4.1), then the alignment.
            (Step::Done, None) => Step::Failed(WcStatus::REM_INV_REQ_ERR),
            (step, _) => step,
        }
    }
}

/// Changes a word, if it is aligned there and here; returns what it was.
///
/// # Safety
/// `place` must be valid for 8 bytes that nobody holds a reference to.
#[inline]
pub(crate) unsafe fn change_word(place: *mut u8, opcode: WrOpcode, operands: &AtomicTarget) -> Option<u64> {
    let change = if opcode == WrOpcode::ATOMIC_FETCH_AND_ADD {
        AtomicChange::Add(operands.compare_add)
    } else {
        AtomicChange::Swap { if_equal: operands.compare_add, new: operands.swap }
    };
    let is_aligned = place.addr().is_multiple_of(8) && operands.remote_addr.is_multiple_of(8);
    // SAFETY: the caller's promise, and the alignment is checked.
    is_aligned.then(|| unsafe { update_word(place, change) })
}
