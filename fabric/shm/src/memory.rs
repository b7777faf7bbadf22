//! Loads from and stores to shared memory. Nothing else in the crate touches it.
//!
//! Such memory is never a reference: control words are atomics at 8-byte offsets, payload moves by bounded copies. A
//! racing writer (a broken or hostile peer) can garble what a copy brings, never what bounds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{self, Advice};

use crate::segment::Mapping;
use crate::store_hook::before_store as step;

/// A mapped piece of shared memory, addressed by byte offset.
#[derive(Clone)]
pub struct SharedMem {
    base: *mut u8,
    len_bytes: usize,
    _keep: Arc<Mapping>,
}

// SAFETY: all access goes through atomics and bounded copies below; the mapping lives as long as `_keep`.
unsafe impl Send for SharedMem {}
// SAFETY: as above.
unsafe impl Sync for SharedMem {}

impl SharedMem {
    /// All of `mapping`.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Self { base: mapping.base(), len_bytes: mapping.len_bytes(), _keep: mapping }
    }

    /// A part of it, as memory of its own.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn part(&self, offset: usize, len_bytes: usize) -> Self {
        Self { base: self.range(offset, len_bytes), len_bytes, _keep: self._keep.clone() }
    }

    /// Bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len_bytes,
            "word {offset} outside shared memory"
        );
        // SAFETY: in bounds by the check, aligned because mappings and parts are page-aligned, alive by `_keep`; every access
        // to the bytes of control words is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// A word that is used often: its bounds are checked once, here.
    ///
    /// # Panics
    /// As [`SharedMem::load`].
    pub fn word_at(&self, offset: usize) -> SharedWord {
        SharedWord { word: self.word(offset), _keep: self._keep.clone() }
    }

    /// Loads the word at `offset`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 inside the memory; so do the other accesses to words.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Stores a word.
    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        step();
        self.word(offset).store(value, order);
    }

    /// Sets bits of a word and returns what it was.
    #[inline]
    pub fn fetch_or(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        step();
        self.word(offset).fetch_or(bits, order)
    }

    /// Clears bits of a word and returns what it was.
    #[inline]
    pub fn fetch_and(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        step();
        self.word(offset).fetch_and(bits, order)
    }

    /// Replaces a word if it is `current`; returns whether it was.
    #[inline]
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        step();
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Copies memory that is no slice of ours (a registered buffer) in, in no particular order.
    ///
    /// # Safety
    /// `src` must be valid for `len_bytes` and not overlap this memory.
    #[inline]
    pub unsafe fn copy_in_raw(&self, offset: usize, src: *const u8, len_bytes: usize) {
        let dst = self.range(offset, len_bytes);
        step();
        // SAFETY: destination in bounds by `range`, source by the caller's promise.
        unsafe { copy_plain(dst, src, len_bytes) };
    }

    /// Allocates the pages of a range, if they are not (`MADV_POPULATE_WRITE`, Linux 5.14): no later access to them can
    /// fail. Whether there is memory for them is to be asked before ([`crate::require_memory`]). What is there stays.
    ///
    /// # Errors
    /// If there is no memory for them, or the kernel is older.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn populate(&self, offset: usize, len_bytes: usize) -> rustix::io::Result<()> {
        let place = self.range(offset, len_bytes);
        // SAFETY: inside of the mapping; the advice changes no byte.
        unsafe { mm::madvise(place.cast(), len_bytes, Advice::LinuxPopulateWrite) }
    }

    /// The address of a range, for copies between two shared memories.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    #[inline]
    pub fn range(&self, offset: usize, len_bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.len_bytes && len_bytes <= self.len_bytes - offset,
            "range outside shared memory"
        );
        // SAFETY: in bounds by the check.
        unsafe { self.base.add(offset) }
    }
}

/// One control word, its bounds checked once.
#[derive(Clone)]
pub struct SharedWord {
    word: *const AtomicU64,
    _keep: Arc<Mapping>,
}

// SAFETY: as `SharedMem`.
unsafe impl Send for SharedWord {}
// SAFETY: as `SharedMem`.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Loads it.
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        // SAFETY: made by `SharedMem::word_at` from a checked word; alive by `_keep`.
        unsafe { &*self.word }.load(order)
    }

    /// Stores it.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        step();
        // SAFETY: as `load`.
        unsafe { &*self.word }.store(value, order);
    }
}

/// How an atomic operation changes a word.
#[derive(Clone, Copy)]
pub enum AtomicChange {
    /// Adds, wrapping.
    Add(u64),
    /// Stores `new` where `if_equal` is.
    Swap {
        /// What must stand there.
        if_equal: u64,
        /// What it becomes.
        new: u64,
    },
}

/// Places a payload in address order, the final byte (if possible the final aligned word) last with release: who
/// polls on it sees all the rest. This is the one routine that in-order placement rests on.
///
/// # Safety
/// `dst` and `src` must be valid for `len_bytes`, must not overlap, and nobody may hold a reference to `dst`.
#[inline]
pub unsafe fn copy_in_order(dst: *mut u8, src: *const u8, len_bytes: usize) {
    if len_bytes == 0 {
        return;
    }
    // SAFETY: inside both ranges by the caller's promise; the last store is atomic and aligned for its type.
    unsafe {
        let end = dst.add(len_bytes);
        if len_bytes >= 8 && end.addr().is_multiple_of(8) {
            let body = len_bytes - 8;
            copy_body(dst, src, body);
            let last = src.add(body).cast::<u64>().read_unaligned();
            step();
            AtomicU64::from_ptr(end.sub(8).cast()).store(last, Ordering::Release);
        } else {
            copy_body(dst, src, len_bytes - 1);
            step();
            AtomicU8::from_ptr(end.sub(1)).store(*src.add(len_bytes - 1), Ordering::Release);
        }
    }
}

/// # Safety
/// As [`copy_in_order`].
#[inline]
unsafe fn copy_body(dst: *mut u8, src: *const u8, len_bytes: usize) {
    step();
    // SAFETY: the caller's promise. With the test hook, the copy is cut so that a death can fall into its middle.
    unsafe {
        if cfg!(debug_assertions) && len_bytes > 1 {
            let half = len_bytes / 2;
            copy_plain(dst, src, half);
            step();
            copy_plain(dst.add(half), src.add(half), len_bytes - half);
        } else {
            copy_plain(dst, src, len_bytes);
        }
    }
}

/// Copies without order. Small multiples of a word are copied word by word: a call of memcpy costs more than that.
///
/// # Safety
/// As [`copy_in_order`].
#[inline]
pub unsafe fn copy_plain(dst: *mut u8, src: *const u8, len_bytes: usize) {
    const BY_WORDS: usize = 64;
    // SAFETY: the caller's promise; all accesses are inside the two ranges.
    unsafe {
        if len_bytes <= BY_WORDS && len_bytes.is_multiple_of(8) {
            for at in (0..len_bytes).step_by(8) {
                dst.add(at).cast::<u64>().write_unaligned(src.add(at).cast::<u64>().read_unaligned());
            }
        } else {
            std::ptr::copy_nonoverlapping(src, dst, len_bytes);
        }
    }
}

/// Changes 8 bytes of shared memory in one step that is atomic for every processor, and returns the old value.
/// Sequentially consistent: nothing before or after it is reordered with it.
///
/// # Safety
/// `place` must be valid for 8 bytes, aligned to 8, and nobody may hold a reference to them.
pub unsafe fn update_word(place: *mut u8, change: AtomicChange) -> u64 {
    step();
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(place.cast()) };
    match change {
        AtomicChange::Add(value) => word.fetch_add(value, Ordering::SeqCst),
        AtomicChange::Swap { if_equal, new } => {
            match word.compare_exchange(if_equal, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
    }
}

/// Reads a payload, its first aligned word first with acquire: a reader that finds a finished header there also has
/// what was written before it.
///
/// # Safety
/// As [`copy_in_order`], with `src` the shared side.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: the caller's promise; the first load is atomic and aligned.
    unsafe {
        if len_bytes >= 8 && src.addr().is_multiple_of(8) {
            let first = AtomicU64::from_ptr(src.cast_mut().cast()).load(Ordering::Acquire);
            dst.cast::<u64>().write_unaligned(first);
            copy_plain(dst.add(8), src.add(8), len_bytes - 8);
        } else {
            std::ptr::copy_nonoverlapping(src, dst, len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_copies_are_exact_at_every_length_and_alignment() {
        let src: Vec<u8> = (0..=255).collect();
        for len in 0..80 {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 8)] {
                let mut dst = vec![0xEE_u8; 128];
                // SAFETY: both ranges are inside their vectors, which do not overlap.
                unsafe { copy_in_order(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
                assert_eq!(dst[to..to + len], src[from..from + len]);
                assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xEE));
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_out(back.as_mut_ptr(), dst.as_ptr().add(to), len) };
                assert_eq!(back, src[from..from + len]);
            }
        }
    }
}
