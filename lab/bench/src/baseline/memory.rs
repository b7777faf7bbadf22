//! Copying large blocks: the bound of every bandwidth between processes that copies once.

use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, PeerError};
use farcall_shm::Segment;

/// Bytes of one copy.
pub const COPY_LEN_BYTES: usize = 1 << 20;

/// Copies within private memory.
pub(super) fn copies_private(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let mut to = vec![1; COPY_LEN_BYTES];
    copies(plan, to.as_mut_ptr())
}

/// Copies into a shared mapping, as a peer would have it.
pub(super) fn copies_shared(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let segment = Segment::create("farcall-copy", COPY_LEN_BYTES)?;
    copies(plan, segment.base())
}

/// `to` is the start of `COPY_LEN_BYTES` bytes that nobody else knows.
fn copies(plan: &PairPlan, to: *mut u8) -> Result<RoundTrips, PeerError> {
    let mut from = vec![1; COPY_LEN_BYTES];
    ping_pong(plan.warm_up, plan.duration, |number| {
        from[0] = number as u8;
        // SAFETY: both blocks are `COPY_LEN_BYTES` long and distinct, and the callers keep `to` alive.
        let seen = unsafe {
            to.copy_from_nonoverlapping(from.as_ptr(), COPY_LEN_BYTES);
            // Read back through the mapping, so that the copy cannot be left out.
            to.read_volatile()
        };
        if seen == number as u8 { Ok(()) } else { Err(PeerError::WrongEcho(number)) }
    })
}
