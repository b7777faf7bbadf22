//! Registered buffers from a pool, as guards.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_verbs::{Access, Error, ProtectionDomain};
use thiserror::Error as ThisError;

use crate::Region;

/// Why there is no buffer.
#[derive(Debug, ThisError, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// All are out.
    #[error("all {count} buffers of the pool are in use; free one or make the pool larger")]
    Exhausted {
        /// How many there are.
        count: usize,
    },
    /// Buffers are not that long.
    #[error("a buffer of {asked_bytes} bytes; the pool's are {len_bytes} bytes long")]
    TooLong {
        /// What was asked for.
        asked_bytes: usize,
        /// What there is.
        len_bytes: usize,
    },
}

/// Buffers of one length in one registered region. Taking and giving back locks for a few instructions; keep buffers
/// rather than taking one for each message.
#[derive(Clone)]
pub struct BufferPool(Arc<Inner>);

struct Inner {
    region: Arc<Region>,
    len_bytes: usize,
    count: usize,
    free: Mutex<Vec<u32>>,
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // The list is whole at every instruction: a panic elsewhere does not spoil it.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BufferPool {
    /// Registers `count` buffers of `len_bytes`, rounded up to cache lines.
    ///
    /// # Errors
    /// If memory or regions run out.
    pub fn new(
        pd: &dyn ProtectionDomain,
        count: u32,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let len_bytes = len_bytes.max(1).next_multiple_of(64);
        let region = Arc::new(Region::alloc(pd, len_bytes * count as usize, access)?);
        let free = Mutex::new((0..count).rev().collect());
        Ok(Self(Arc::new(Inner { region, len_bytes, count: count as usize, free })))
    }

    /// Takes a buffer of at least `len_bytes`.
    ///
    /// # Errors
    /// If all are in use, or they are shorter.
    pub fn take(&self, len_bytes: usize) -> Result<Buffer, PoolError> {
        if len_bytes > self.0.len_bytes {
            return Err(PoolError::TooLong { asked_bytes: len_bytes, len_bytes: self.0.len_bytes });
        }
        let index = self.0.free().pop().ok_or(PoolError::Exhausted { count: self.0.count })?;
        Ok(Buffer { pool: Arc::clone(&self.0), index })
    }

    /// How many buffers are free.
    pub fn available(&self) -> usize {
        self.0.free().len()
    }
}

/// A registered buffer; goes back to its pool when dropped. Its memory outlives every work request that names it: the
/// pool owns it, and peers hold the region until they are drained.
pub struct Buffer {
    pool: Arc<Inner>,
    index: u32,
}

impl Buffer {
    /// Its length in bytes.
    pub fn capacity(&self) -> usize {
        self.pool.len_bytes
    }

    /// The region it lies in, to attach to peers.
    pub fn region(&self) -> &Arc<Region> {
        &self.pool.region
    }

    /// Where it begins in that region.
    pub fn offset(&self) -> usize {
        self.index as usize * self.pool.len_bytes
    }

    /// Copies bytes in at `at`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.capacity(), "{} bytes at {at} of {}", bytes.len(), self.capacity());
        self.pool.region.copy_in(self.offset() + at, bytes);
    }

    /// Copies bytes out from `at`.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn get(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.capacity(), "{} bytes at {at} of {}", out.len(), self.capacity());
        self.pool.region.copy_out(self.offset() + at, out);
    }

    /// Appends the first `len_bytes` to a vector.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn append_to(&self, len_bytes: usize, out: &mut Vec<u8>) {
        assert!(len_bytes <= self.capacity(), "{len_bytes} bytes of {}", self.capacity());
        self.pool.region.append_to(self.offset(), len_bytes, out);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free().push(self.index);
    }
}
