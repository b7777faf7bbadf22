//! Uses of a connection before its ends have met: whether it has lasted.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};

/// Direction of a call on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// To the peer.
    Send = 1,
    /// From the peer.
    Receive = 2,
}

/// Maximum length in bytes of a transfer that counts as a use although the one before had the same direction: one-way
/// streams of longer ones gain nothing by shared memory.
const SMALL_BYTES: usize = 4096;

/// Minimum length in bytes of a transfer that takes a use away: copying it takes longer than the calls and wake-ups that
/// shared memory saves.
const LARGE_BYTES: usize = 32 << 10;

/// Transfers by TCP: small ones, and those that change the direction.
pub struct Uses {
    count: AtomicU32,
    /// Number of uses at which a meeting is tried next.
    due: AtomicU32,
    /// [`Direction`] of the last transfer; 0: none.
    last_direction: AtomicU8,
}

impl Uses {
    pub(super) fn new() -> Self {
        Self { count: AtomicU32::new(0), due: AtomicU32::new(0), last_direction: AtomicU8::new(0) }
    }

    /// Begins to count those of a connection whose meeting is tried after `due_uses`.
    pub(super) fn begin(&self, due_uses: u32) {
        self.count.store(0, Relaxed);
        self.last_direction.store(0, Relaxed);
        self.due.store(due_uses, Relaxed);
    }

    /// Counts a transfer; returns whether a meeting is to be tried now.
    #[inline]
    pub fn count(&self, direction: Direction, len_bytes: usize) -> bool {
        let is_turn = self.last_direction.swap(direction as u8, Relaxed) != direction as u8;
        if len_bytes >= LARGE_BYTES {
            let _ = self.count.fetch_update(Relaxed, Relaxed, |count| Some(count.saturating_sub(1)));
            return false;
        }
        if !is_turn && len_bytes > SMALL_BYTES {
            return false;
        }
        self.count.fetch_add(1, Relaxed) + 1 >= self.due.load(Relaxed)
    }

    /// Tries again at the next use, or (`false`) after twice as many uses as so far.
    pub fn try_again(&self, is_soon: bool) {
        let uses = self.count.load(Relaxed);
        self.due.store(if is_soon { uses + 1 } else { uses.saturating_mul(2) }, Relaxed);
    }
}
