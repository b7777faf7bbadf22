//! Copying into a shared ring by one process and out of it by another: the bound of bytes that two copies carry from one
//! core to another.

use super::memory::COPY_LEN_BYTES;
use super::task::Answer;
use crate::measure::{RoundTrips, ping_pong};
use crate::peer::{PairPlan, Peer, PeerError};
use farcall_shm::{Segment, SharedMem, copy_out, copy_plain};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Bytes that are copied before the other end learns of them.
const PIECE_BYTES: usize = 32 << 10;
const PIECES: usize = 8;
/// How many pieces were written, and how many read: each alone in two lines, because processors fetch lines in pairs.
const WRITTEN: usize = 0;
const READ: usize = 128;
const HEAD_BYTES: usize = 4096;
const RING_BYTES: usize = HEAD_BYTES + PIECES * PIECE_BYTES;
/// After so many fruitless polls the writer asks whether its peer is still alive.
const POLLS_PER_CHECK: u32 = 1 << 20;

/// Where a piece lies in the ring.
const fn place(number: u64) -> usize {
    HEAD_BYTES + number as usize % PIECES * PIECE_BYTES
}

/// Each piece begins with its number.
pub(super) fn copies(plan: &PairPlan) -> Result<RoundTrips, PeerError> {
    let segment = Segment::create("farcall-copy-through", RING_BYTES)?;
    let mut peer = plan.launcher.start(&Answer::TakeOut, plan.server_core, &[segment.fd()])?;
    let ring = segment.memory();
    let mut from = vec![1; COPY_LEN_BYTES];
    let mut written = 0_u64;
    ping_pong(plan.warm_up, plan.duration, |_| {
        for piece in from.chunks_exact_mut(PIECE_BYTES) {
            piece[..8].copy_from_slice(&written.to_le_bytes());
            wait_for_room(&ring, written, &mut peer)?;
            // SAFETY: `range` checks the bounds, and the reader does not look there before it is told.
            unsafe { copy_plain(ring.range(place(written), PIECE_BYTES), piece.as_ptr(), PIECE_BYTES) };
            written += 1;
            ring.store(WRITTEN, written, Ordering::Release);
        }
        Ok(())
    })
}

fn wait_for_room(ring: &SharedMem, written: u64, peer: &mut Peer) -> Result<(), PeerError> {
    loop {
        for _ in 0..POLLS_PER_CHECK {
            if written - ring.load(READ, Ordering::Acquire) < PIECES as u64 {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if !peer.is_alive() {
            return Err(PeerError::Ended);
        }
    }
}

/// The peer: takes piece after piece until it is killed, or one is not what it should be.
pub(super) fn take_out(
    memory: &OwnedFd,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    let ring = SharedMem::new(Segment::map_foreign(memory.as_fd(), 0, RING_BYTES, true)?);
    let mut to = vec![0; COPY_LEN_BYTES];
    ready()?;
    for number in 0_u64.. {
        while ring.load(WRITTEN, Ordering::Acquire) <= number {
            std::hint::spin_loop();
        }
        let at = number as usize * PIECE_BYTES % COPY_LEN_BYTES;
        let piece = &mut to[at..at + PIECE_BYTES];
        // SAFETY: `range` checks the bounds; the writer does not write there before it is told, and could only change
        // bytes that are copied.
        unsafe { copy_out(piece.as_mut_ptr(), ring.range(place(number), PIECE_BYTES), PIECE_BYTES) };
        if piece[..8] != number.to_le_bytes() {
            return Err(PeerError::WrongEcho(number));
        }
        ring.store(READ, number + 1, Ordering::Release);
    }
    Ok(())
}
