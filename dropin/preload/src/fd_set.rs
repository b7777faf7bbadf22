//! Sets of descriptors.

use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Number of descriptors that the library knows; it leaves those from this number on to the kernel.
pub const FDS: usize = 65_536;

/// A set of descriptors below [`FDS`], without a lock.
pub struct FdSet([AtomicU64; FDS / 64]);

impl FdSet {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; FDS / 64])
    }

    /// Returns whether it has a descriptor.
    #[inline]
    pub fn contains(&self, fd: c_int) -> bool {
        self.0.get(fd as usize / 64).is_some_and(|bits| bits.load(SeqCst) & (1 << (fd % 64)) != 0)
    }

    /// Adds a descriptor.
    pub fn insert(&self, fd: c_int) {
        if let Some(bits) = self.0.get(fd as usize / 64) {
            bits.fetch_or(1 << (fd % 64), SeqCst);
        }
    }

    /// Removes a descriptor. Returns whether the set had it.
    pub fn remove(&self, fd: c_int) -> bool {
        let bit = 1 << (fd % 64);
        self.0.get(fd as usize / 64).is_some_and(|bits| bits.fetch_and(!bit, SeqCst) & bit != 0)
    }
}
