//! History of the transfers of a connection: before pairing, whether the connection lasts; afterwards, whether its
//! transfers are large.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize};

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

/// Minimum length in bytes of a transfer that reduces the count by one: copying it takes longer than the calls and
/// wake-ups that shared memory saves.
const LARGE_BYTES: usize = 32 << 10;

/// Value of [`Uses::large`] at which a moved connection returns to TCP.
const LARGE_MAX: u32 = 64;

/// Transfers of a connection.
pub struct Usage {
    /// Transfers by TCP: small ones, and those that change the direction.
    count: AtomicU32,
    /// Number of uses at which the ends next try to pair.
    due: AtomicU32,
    /// [`Direction`] of the last transfer; 0: none.
    last_direction: AtomicU8,
    /// Number of bytes transferred in shared memory since the last change of direction.
    since_turn_bytes: AtomicUsize,
    /// Two for each run of at least [`LARGE_BYTES`] bytes between two changes of direction, minus one for each shorter
    /// run; at least 0.
    large: AtomicU32,
}

impl Usage {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            due: AtomicU32::new(0),
            last_direction: AtomicU8::new(0),
            since_turn_bytes: AtomicUsize::new(0),
            large: AtomicU32::new(0),
        }
    }

    /// Begins the history of a connection whose ends try to pair after `due_uses` uses.
    pub(super) fn begin(&self, due_uses: u32) {
        self.count.store(0, Relaxed);
        self.last_direction.store(0, Relaxed);
        self.since_turn_bytes.store(0, Relaxed);
        self.large.store(0, Relaxed);
        self.due.store(due_uses, Relaxed);
    }

    /// Counts a transfer; returns whether the ends are to pair now.
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

    /// Counts a transfer in shared memory; returns whether the connection is to return to TCP. Transfers of other
    /// threads at the same time may be counted wrongly.
    ///
    /// A one-way stream gains by shared memory, because its two ends work at the same time. With requests and large
    /// responses one end polls and waits while the other one copies.
    #[inline]
    pub fn count_in_ring(&self, direction: Direction, len_bytes: usize) -> bool {
        let before_bytes = self.since_turn_bytes.load(Relaxed);
        let is_turn = self.last_direction.load(Relaxed) != direction as u8;
        let now_bytes = if is_turn { len_bytes } else { before_bytes.saturating_add(len_bytes) };
        self.since_turn_bytes.store(now_bytes, Relaxed);
        let mut large = self.large.load(Relaxed);
        if is_turn {
            self.last_direction.store(direction as u8, Relaxed);
            if before_bytes < LARGE_BYTES && large > 0 {
                large -= 1;
                self.large.store(large, Relaxed);
            }
        }
        if now_bytes >= LARGE_BYTES && (is_turn || before_bytes < LARGE_BYTES) {
            large += 2;
            self.large.store(large, Relaxed);
        }
        large >= LARGE_MAX
    }

    /// Tries again at the next use, or (`false`) after twice as many uses as so far.
    pub fn schedule_retry(&self, is_soon: bool) {
        let uses = self.count.load(Relaxed);
        self.due.store(if is_soon { uses + 1 } else { uses.saturating_mul(2) }, Relaxed);
    }
}
