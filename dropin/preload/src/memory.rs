//! Memory of a ring, as the ring uses it. Models replace it by loom's (`tests/ring_model.rs`).

use std::sync::atomic::Ordering;

use farcall_shm::{SharedMem, before_store, copy_plain, update_word};

pub use farcall_shm::AtomicChange;

/// Memory that both ends map.
pub struct Memory(SharedMem);

impl Memory {
    /// Creates the view of a mapping.
    pub fn new(mem: SharedMem) -> Self {
        Self(mem)
    }

    pub fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0.load(at, order)
    }

    pub fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0.store(at, value, order);
    }

    pub fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(at, bits, order)
    }

    /// Stores `new` if the word is `current`, with acquire and release ordering. Returns whether it was.
    pub fn compare_exchange(&self, at: usize, current: u64, new: u64) -> bool {
        self.0.compare_exchange(at, current, new)
    }

    /// Changes a word with sequential consistency. Returns the old value.
    pub fn update(&self, at: usize, change: AtomicChange) -> u64 {
        // SAFETY: eight aligned bytes inside of the mapping, by `range`; accessed by atomics only.
        unsafe { update_word(self.0.range(at, 8), change) }
    }

    /// Allocates a range if it is not allocated. Returns whether it can be accessed now.
    pub fn populate(&self, at: usize, len_bytes: usize) -> bool {
        self.0.populate(at, len_bytes).is_ok()
    }

    /// # Safety
    /// `len_bytes` bytes at `from` can be read.
    #[inline]
    pub unsafe fn copy_in(&self, at: usize, from: *const u8, len_bytes: usize) {
        before_store();
        // SAFETY: `range` returns the address of `len_bytes` bytes inside of the mapping, which `self` keeps; as many
        // can be read at `from`, by this function's contract.
        unsafe { copy_plain(self.0.range(at, len_bytes), from, len_bytes) };
    }

    /// # Safety
    /// `len_bytes` bytes at `to` can be written.
    #[inline]
    pub unsafe fn copy_out(&self, at: usize, to: *mut u8, len_bytes: usize) {
        // SAFETY: `range` returns the address of `len_bytes` bytes inside of the mapping, which `self` keeps; as many
        // can be written at `to`, by this function's contract.
        unsafe { copy_plain(to, self.0.range(at, len_bytes), len_bytes) };
    }
}
