//! Posted receives of a queue pair with a receive queue of its own.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use farcall_shm::ring::Layout;
use farcall_verbs::Sge;

/// Posted receives: a private ring from the posting thread to the polling thread, on one cache line.
#[repr(align(64))]
pub(crate) struct RecvQueue {
    depth: u64,
    sges_per_wr: usize,
    /// Each receive is a header followed by space for its elements. The header is an `Sge` that holds the `wr_id`, the
    /// number of elements and, in place of a key, whether the elements must be checked.
    slots: Box<[UnsafeCell<Sge>]>,
    /// Set of posted keys: one bit for each hash value, so several keys share a bit.
    posted_keys: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: the slots between `head` and `tail` belong to the consumer, the others to the producer. `push` and `pop_if`
// require one thread each, and transfer a slot by a release store that the other side loads with acquire.
unsafe impl Sync for RecvQueue {}
// SAFETY: `Sge` is plain data.
unsafe impl Send for RecvQueue {}

impl RecvQueue {
    pub(crate) fn new(layout: &Layout) -> Self {
        // A queue pair with shared receives has none of its own. With depth 0 the queue is both full and empty.
        let depth = if layout.shared { 0 } else { u64::from(layout.rq_depth) };
        let sges_per_wr = usize::from(layout.recv_sge);
        let elements = depth as usize * (1 + sges_per_wr);
        Self {
            depth,
            sges_per_wr,
            posted_keys: AtomicU64::new(0),
            slots: (0..elements).map(|_| UnsafeCell::new(Sge::default())).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }

    #[inline]
    fn slot(&self, seq: u64) -> &[UnsafeCell<Sge>] {
        let len = 1 + self.sges_per_wr;
        &self.slots[(seq & (self.depth - 1)) as usize * len..][..len]
    }

    pub(crate) fn is_full(&self) -> bool {
        self.tail.load(Relaxed) - self.head.load(Acquire) >= self.depth
    }

    /// Returns the sequence number of the receive that the next message consumes.
    pub(super) fn oldest_seq(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Returns the sequence number of the next receive to be posted.
    pub(crate) fn next_seq(&self) -> u64 {
        self.tail.load(Relaxed)
    }

    /// Returns whether a receive with an element of this key may have been posted.
    pub(crate) fn may_hold(&self, lkey: u32) -> bool {
        self.posted_keys.load(Relaxed) & key_bit(lkey) != 0
    }

    /// Adds a receive. If `must_check` is set, its elements are checked when a message arrives for it. Returns the key
    /// bits that no earlier receive had.
    ///
    /// # Safety
    /// Only one thread may call it at a time, the queue must not be full, and `sges` has at most `sges_per_wr`
    /// elements.
    #[inline]
    pub(crate) unsafe fn push(&self, wr_id: u64, sges: &[Sge], must_check: bool) -> u64 {
        let tail = self.tail.load(Relaxed);
        let [header, elements @ ..] = self.slot(tail) else { return 0 };
        // SAFETY: by the contract of this function the queue is not full, so the slot belongs to the producer until
        // `tail` is stored.
        unsafe { *header.get() = Sge { addr: wr_id, length: sges.len() as u32, lkey: must_check.into() } };
        let known_keys = self.posted_keys.load(Relaxed);
        let mut keys = known_keys;
        for (cell, element) in elements.iter().zip(sges) {
            keys |= key_bit(element.lkey);
            // SAFETY: the slot belongs to the producer until `tail` is stored.
            unsafe { *cell.get() = *element };
        }
        if keys != known_keys {
            self.posted_keys.store(keys, Relaxed);
        }
        self.tail.store(tail + 1, Release);
        keys & !known_keys
    }

    /// Passes the oldest receive to `work`, and removes it.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
    #[inline]
    pub(crate) unsafe fn pop<R>(&self, work: impl FnOnce(u64, &[Sge]) -> R) -> Option<R> {
        // SAFETY: by the contract of this function the queue has one consumer at a time, as `pop_if` requires.
        unsafe { self.pop_if(|wr_id, sges, _| Some(work(wr_id, sges))) }
            .map(|result| result.expect("was given"))
    }

    /// Passes the oldest receive to `work`, together with whether its elements must be checked. Removes it if `work`
    /// returns a value.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
    #[inline]
    pub(crate) unsafe fn pop_if<R>(
        &self,
        work: impl FnOnce(u64, &[Sge], bool) -> Option<R>,
    ) -> Option<Option<R>> {
        let head = self.head.load(Relaxed);
        if self.tail.load(Acquire) == head {
            return None;
        }
        let slot = self.slot(head);
        // SAFETY: the queue is not empty, so the slot belongs to the consumer until `head` is stored. `UnsafeCell<Sge>`
        // has the layout of `Sge`.
        let elements = unsafe { std::slice::from_raw_parts(slot.as_ptr().cast::<Sge>(), slot.len()) };
        let (header, sges) = elements.split_first().expect("a slot begins with its header");
        let result = work(header.addr, &sges[..header.length as usize], header.lkey != 0);
        if result.is_some() {
            self.head.store(head + 1, Release);
        }
        Some(result)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tail.load(Acquire) == self.head.load(Relaxed)
    }
}

/// Returns the bit of a key in the set of posted keys.
#[inline]
pub(crate) const fn key_bit(lkey: u32) -> u64 {
    // The upper bits of a product depend on all bits of the key.
    1 << (lkey.wrapping_mul(0x9E37_79B9) >> 26)
}
