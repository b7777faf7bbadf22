//! Copying large blocks: the upper limit of bandwidth between processes with one copy.

use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};
use farcall_shm::Segment;

/// Length of one copy in bytes.
pub const COPY_LEN_BYTES: usize = 1 << 20;

/// Measures copies within private memory.
pub(super) fn copies_private(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let mut to = vec![1; COPY_LEN_BYTES];
    copies(plan, to.as_mut_ptr())
}

/// Measures copies into a shared mapping, as a peer would have it.
pub(super) fn copies_shared(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let segment = Segment::create("farcall-copy", COPY_LEN_BYTES)?;
    copies(plan, segment.base())
}

/// Measures copies to `to`, the start of `COPY_LEN_BYTES` bytes that no other code accesses.
fn copies(plan: &PairPlan, to: *mut u8) -> Result<RoundTrips, PeerError> {
    let mut from = vec![1; COPY_LEN_BYTES];
    ping_pong(plan.warm_up, plan.duration, |number| {
        from[0] = number as u8;
        // SAFETY: `from` and `to` are distinct blocks of `COPY_LEN_BYTES` bytes. `copies_private` and `copies_shared`
        // keep the owner of `to` (a vector, a segment) alive during this call, and no other code accesses it.
        let seen = unsafe {
            to.copy_from_nonoverlapping(from.as_ptr(), COPY_LEN_BYTES);
            // Read back through the mapping, so that the compiler cannot remove the copy.
            to.read_volatile()
        };
        if seen == number as u8 { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}
