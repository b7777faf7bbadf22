//! Model of shared memory for loom.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

/// Shared memory made of loom's atomics, with the addressing of the real type.
#[derive(Clone)]
pub struct SharedMem(Arc<Vec<AtomicU64>>);

impl SharedMem {
    pub fn model(len_bytes: usize) -> Self {
        Self(Arc::new((0..len_bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn len_bytes(&self) -> usize {
        self.0.len() * 8
    }

    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.0[offset / 8].load(order)
    }

    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.0[offset / 8].store(value, order);
    }

    pub fn fetch_or(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        self.0[offset / 8].fetch_or(bits, order)
    }

    pub fn fetch_and(&self, offset: usize, bits: u64, order: Ordering) -> u64 {
        self.0[offset / 8].fetch_and(bits, order)
    }

    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> bool {
        self.0[offset / 8].compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        for (i, word) in bytes.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            self.0[offset / 8 + i].store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }
}
