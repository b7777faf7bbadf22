//! CAS and FAA. The initiator executes them in the target's mapped memory with the processor's atomic instructions.
//! They are therefore also atomic with respect to the target's processors, and not only to other requests
//! (`IBV_ATOMIC_GLOB`).

use std::sync::atomic::{Ordering, fence};

use farcall_verbs::{ATOMIC_BYTES, Access, WcStatus};

use super::initiator::Initiator;
use super::request::{ExecuteOutcome, Request, WaitReason};
use super::transfer::{change_word, scatter_bytes};

impl Initiator {
    /// Executes CAS or FAA. The old value is written to the local elements in host byte order.
    ///
    /// # Safety
    /// The contract of [`Initiator::execute`] applies.
    pub(crate) unsafe fn atomic(&mut self, request: &Request<'_>) -> ExecuteOutcome {
        if request.len_bytes != ATOMIC_BYTES {
            return ExecuteOutcome::Failed(WcStatus::LOC_LEN_ERR);
        }
        match self.change(request) {
            (ExecuteOutcome::Done, Some(old)) => {
                // SAFETY: by the contract of `RawQp::post_send` the elements are valid and unreferenced until the
                // completion is polled; their total length is 8 bytes.
                unsafe { scatter_bytes(&old.to_ne_bytes(), request.sges) };
                ExecuteOutcome::Done
            }
            (outcome, _) => outcome,
        }
    }

    /// Changes the target's word without access to the local elements. Returns the old value if it was changed.
    pub(super) fn change(&mut self, request: &Request<'_>) -> (ExecuteOutcome, Option<u64>) {
        let operands = request.target.atomic();
        // Devices and the RoCEv2 transport check the alignment before the key.
        if !operands.remote_addr.is_multiple_of(8) {
            let outcome = if self.accepts().is_some() {
                ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR)
            } else {
                ExecuteOutcome::Wait(WaitReason::Peer)
            };
            return (outcome, None);
        }
        let word = Request { rkey: operands.rkey, len_bytes: ATOMIC_BYTES, sges: &[], ..*request };
        // The atomic must not overtake earlier WRITEs, and a later READ must not overtake its store.
        if std::mem::replace(&mut self.wrote, true) {
            fence(Ordering::SeqCst);
        }
        let mut old = None;
        // SAFETY: `word` has no local elements; `one_sided` passes an address with `ATOMIC_BYTES` valid bytes.
        let outcome = unsafe {
            self.one_sided(&word, Access::REMOTE_ATOMIC, |place| {
                old = change_word(place, request.opcode, &operands);
            })
        };
        match (outcome, old.or_else(|| self.proxied_request.take_previous_value())) {
            // The memory itself is not aligned, although its remote address is.
            (ExecuteOutcome::Done, None) => (ExecuteOutcome::Failed(WcStatus::REM_INV_REQ_ERR), None),
            found => found,
        }
    }
}
