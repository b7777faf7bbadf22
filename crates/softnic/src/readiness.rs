//! Readiness of a completion queue: a bitmap that says where to look, and a word that says that its owner sleeps.
//!
//! A set bit is a promise of the owner to look at that queue pair; a producer that finds it set leaves the line alone.
//! The owner clears bits only of pairs that have been quiet, and scans once more after it did. Both the bit and the
//! sleep word cross with the producer's publication (Dekker), so the producer pays a light fence and the owner a heavy
//! one. All of it is a hint: a wrong bit costs a look, a wrong wake-up a turn of the loop.

use crate::fence;
use crate::shared::SharedMem;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"farccq01");
const AT_MAGIC: usize = 0;
const ARMED: usize = 64;
const BITS: usize = 128;

/// Queue pairs that can be attached to one completion queue.
pub(crate) const MAX_BITS: usize = 4096;

/// Bytes of a completion queue's segment.
pub(crate) const LEN_BYTES: usize = BITS + MAX_BITS / 8;

const ARMED_ANY: u64 = 1;
const ARMED_SOLICITED: u64 = 2;

/// One side's view of a completion queue's readiness segment.
#[derive(Clone)]
pub(crate) struct Readiness {
    mem: SharedMem,
}

impl Readiness {
    pub(crate) fn create(mem: SharedMem) -> Self {
        mem.store(AT_MAGIC, MAGIC, Release);
        Self { mem }
    }

    /// A peer's segment, if it is one.
    #[cfg(not(loom))]
    pub(crate) fn open(mem: SharedMem) -> Option<Self> {
        (mem.len_bytes() >= LEN_BYTES && mem.load(AT_MAGIC, Relaxed) == MAGIC).then_some(Self { mem })
    }

    const fn place(bit: u32) -> (usize, u64) {
        (BITS + (bit / 64) as usize * 8, 1 << (bit % 64))
    }

    /// Producer, after publishing: sets the bit and returns whether the owner must be woken; that duty falls to one
    /// producer only.
    #[inline]
    #[must_use]
    pub(crate) fn announce(&self, bit: u32, solicited: bool) -> bool {
        fence::light();
        let (word, mask) = Self::place(bit);
        if self.mem.load(word, Relaxed) & mask == 0 {
            self.mem.fetch_or(word, mask, Release);
        }
        let armed = self.mem.load(ARMED, Relaxed);
        let wakes = armed == ARMED_ANY || (armed == ARMED_SOLICITED && solicited);
        wakes && self.mem.compare_exchange(ARMED, armed, 0)
    }

    /// Owner: asks to be woken. Whatever was published before is found by a scan after this call; whatever is published
    /// after it wakes.
    pub(crate) fn arm(&self, solicited_only: bool) {
        self.mem.store(ARMED, if solicited_only { ARMED_SOLICITED } else { ARMED_ANY }, Release);
        fence::heavy();
    }

    /// Owner: whether it is still armed, that is, no producer has taken the duty to wake it.
    pub(crate) fn is_armed(&self) -> bool {
        self.mem.load(ARMED, Acquire) != 0
    }

    /// Owner: 64 bits beginning at `64 * index`.
    #[inline]
    pub(crate) fn bits(&self, index: usize) -> u64 {
        self.mem.load(BITS + index * 8, Acquire)
    }

    /// Owner: promises to look at this pair.
    pub(crate) fn promise(&self, bit: u32) {
        let (word, mask) = Self::place(bit);
        self.mem.fetch_or(word, mask, AcqRel);
    }

    /// Owner: takes promises back. Scan these pairs once more after [`Readiness::settle`].
    pub(crate) fn withdraw(&self, index: usize, mask: u64) {
        self.mem.fetch_and(BITS + index * 8, !mask, AcqRel);
    }

    /// Owner: ends a round of withdrawals.
    pub(crate) fn settle(&self) {
        fence::heavy();
    }
}
