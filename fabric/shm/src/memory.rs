//! Loads from and stores to shared memory; the only accesses to it in this crate.
//!
//! No references to such memory exist: control words are atomics at 8-byte offsets, and payload is copied with checked
//! bounds. A concurrent writer (a faulty or hostile peer) can corrupt the copied bytes, but not the bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{self, Advice};

use crate::segment::Mapping;
use crate::store_hook::before_store as step;

/// A mapped range of shared memory, addressed by byte offset.
#[derive(Clone)]
pub struct SharedMem {
    base: *mut u8,
    len_bytes: usize,
    _keep: Arc<Mapping>,
}

// SAFETY: all access goes through the atomics and bounded copies below, which are sound from any thread, and `_keep`
// keeps the mapping alive.
unsafe impl Send for SharedMem {}
// SAFETY: the methods take `&self` and access the memory only through atomics and bounded copies, so concurrent calls
// are sound.
unsafe impl Sync for SharedMem {}

impl SharedMem {
    /// Wraps all of `mapping`.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Self { base: mapping.base(), len_bytes: mapping.len_bytes(), _keep: mapping }
    }

    /// Returns a part of the memory as memory of its own.
    ///
    /// # Panics
    /// Panics if the part is not inside the memory.
    pub fn part(&self, offset: usize, len_bytes: usize) -> Self {
        Self { base: self.range(offset, len_bytes), len_bytes, _keep: self._keep.clone() }
    }

    /// Returns the length in bytes.
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
        // SAFETY: in bounds by the check; aligned because mappings and parts are page-aligned; alive by `_keep`; every
        // access to the bytes of control words is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// Returns a control word for frequent use, whose bounds are checked only once, here.
    ///
    /// # Panics
    /// Panics like [`SharedMem::load`].
    pub fn word_at(&self, offset: usize) -> SharedWord {
        SharedWord { word: self.word(offset), _keep: self._keep.clone() }
    }

    /// Loads the control word at `offset`.
    ///
    /// # Panics
    /// Panics if `offset` is not a multiple of 8 inside the memory, as do all accesses to control words.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Stores a control word.
    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        step();
        self.word(offset).store(value, order);
    }

    /// Sets bits of a control word and returns the old value.
    #[inline]
    pub fn fetch_or(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        step();
        self.word(offset).fetch_or(bits, order)
    }

    /// Clears all bits of a control word that are not in `bits`, and returns the old value.
    #[inline]
    pub fn fetch_and(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        step();
        self.word(offset).fetch_and(bits, order)
    }

    /// Replaces a control word if its value is `current`; returns whether it was.
    #[inline]
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        step();
        self.word(offset).compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Copies memory that is not available as a slice (a registered buffer) into this memory, in no particular order.
    ///
    /// # Safety
    /// `src` must be valid for `len_bytes` and not overlap this memory.
    #[inline]
    pub unsafe fn copy_in_raw(&self, offset: usize, src: *const u8, len_bytes: usize) {
        let dst = self.range(offset, len_bytes);
        step();
        // SAFETY: the destination is in bounds by `range`; the source is valid for `len_bytes` and does not overlap, by
        // the contract of this function.
        unsafe { copy_plain(dst, src, len_bytes) };
    }

    /// Allocates the missing pages of a range (`MADV_POPULATE_WRITE`, Linux 5.14), so that no later access to them can
    /// fail. The caller must check before whether there is memory for them ([`crate::require_memory`]). Existing
    /// contents are preserved.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the pages, or if the kernel is older.
    ///
    /// # Panics
    /// Panics if the range is not inside the memory.
    pub fn populate(&self, offset: usize, len_bytes: usize) -> rustix::io::Result<()> {
        let place = self.range(offset, len_bytes);
        // SAFETY: `range` checked that the range is inside the mapping; this advice changes no byte.
        unsafe { mm::madvise(place.cast(), len_bytes, Advice::LinuxPopulateWrite) }
    }

    /// Returns the address of a range, for copies between two shared memories.
    ///
    /// # Panics
    /// Panics if the range is not inside the memory.
    #[inline]
    pub fn range(&self, offset: usize, len_bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.len_bytes && len_bytes <= self.len_bytes - offset,
            "range outside shared memory"
        );
        // SAFETY: the check above keeps the pointer inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

/// A control word whose bounds were checked once.
#[derive(Clone)]
pub struct SharedWord {
    word: *const AtomicU64,
    _keep: Arc<Mapping>,
}

// SAFETY: the pointer is accessed only as an atomic, and `_keep` keeps the mapping alive.
unsafe impl Send for SharedWord {}
// SAFETY: the pointer is accessed only as an atomic, so concurrent use is sound.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Loads the word.
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        // SAFETY: `SharedMem::word_at` checked bounds and alignment, and `_keep` keeps the mapping alive.
        unsafe { &*self.word }.load(order)
    }

    /// Stores the word.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        step();
        // SAFETY: `SharedMem::word_at` checked bounds and alignment, and `_keep` keeps the mapping alive.
        unsafe { &*self.word }.store(value, order);
    }
}

/// Change of a word by an atomic operation.
#[derive(Clone, Copy)]
pub enum AtomicChange {
    /// Adds, wrapping.
    Add(u64),
    /// Stores `new` if the word is `if_equal`.
    Swap {
        /// Expected value.
        if_equal: u64,
        /// New value.
        new: u64,
    },
}

/// Writes a payload in address order, the final byte (if possible the final aligned word) last with release. A reader
/// that polls this byte then sees all the others. In-order placement relies on this routine alone.
///
/// # Safety
/// `dst` and `src` must be valid for `len_bytes` and must not overlap, and no reference to `dst` may exist.
#[inline]
pub unsafe fn copy_in_order(dst: *mut u8, src: *const u8, len_bytes: usize) {
    if len_bytes == 0 {
        return;
    }
    // SAFETY: all accesses are inside the two ranges, which are valid by the contract of this function. The last store
    // is atomic and aligned for its type.
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

/// Copies all but the last bytes of a payload.
///
/// # Safety
/// See [`copy_in_order`].
#[inline]
unsafe fn copy_body(dst: *mut u8, src: *const u8, len_bytes: usize) {
    step();
    // SAFETY: both ranges are valid for `len_bytes` and do not overlap, by the contract of this function. With the test
    // hook, the copy is split so that a signal can stop it in the middle.
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

/// Copies without any order. Short lengths that are multiples of a word are copied word by word, which costs less than
/// a call of memcpy.
///
/// # Safety
/// See [`copy_in_order`].
#[inline]
pub unsafe fn copy_plain(dst: *mut u8, src: *const u8, len_bytes: usize) {
    const BY_WORDS: usize = 64;
    // SAFETY: all accesses are inside the two ranges, which are valid for `len_bytes` and do not overlap, by the
    // contract of this function.
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

/// Changes 8 bytes of shared memory atomically with respect to every processor, and returns the old value. Sequentially
/// consistent: no access before or after it is reordered with it.
///
/// # Safety
/// `place` must be valid for 8 bytes and aligned to 8, and no reference to the bytes may exist.
pub unsafe fn update_word(place: *mut u8, change: AtomicChange) -> u64 {
    step();
    // SAFETY: `place` is valid for 8 bytes, aligned and unreferenced, by the contract of this function.
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

/// Reads a payload, its first aligned word first with acquire: a reader that finds a complete header there also has the
/// data written before the header.
///
/// # Safety
/// See [`copy_in_order`]; here `src` is the shared side.
#[inline]
pub unsafe fn copy_out(dst: *mut u8, src: *const u8, len_bytes: usize) {
    // SAFETY: all accesses are inside the two ranges, which are valid for `len_bytes` and do not overlap, by the
    // contract of this function. The first load is atomic and aligned.
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
                // SAFETY: both ranges are inside their vectors, which do not overlap.
                unsafe { copy_out(back.as_mut_ptr(), dst.as_ptr().add(to), len) };
                assert_eq!(back, src[from..from + len]);
            }
        }
    }
}
