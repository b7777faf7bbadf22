//! Registered memory: buffers that have one owner at a time, and memory that peers can access.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_link::{Nic, Region, RemoteRegion};
use farcall_verbs::{Access, Error, Result};

/// Buffers are aligned to cache lines.
const ALIGN_BYTES: usize = 64;

/// A number of buffers of one length, registered together. Clones share the buffers.
#[derive(Clone)]
pub struct Buffers(pub(super) Arc<Pool>);

farcall_verbs::opaque_debug!(Buffers);

pub(super) struct Pool {
    pub(super) region: Arc<Region>,
    pub(super) count: u32,
    /// Length of a buffer in bytes.
    pub(super) len_bytes: usize,
    stride_bytes: usize,
    free: Mutex<Vec<u32>>,
}

/// Registered memory that is accessed by its owner only: by no peer, and by no device while it is owned. Posting
/// transfers it to the queue pair, and the completion returns it. Dropping it makes it available to [`Buffers::take`].
pub struct Buffer {
    pub(super) pool: Arc<Pool>,
    pub(super) slot: u32,
    /// Set if a peer may still write to it; the buffer is never reused then.
    is_lost: bool,
}

impl Buffers {
    /// Allocates and registers `count` zeroed buffers of `len_bytes`.
    ///
    /// # Errors
    /// If `count` is zero, if their total length exceeds the address space, or if memory or regions are exhausted.
    pub fn new(nic: &Nic, count: u32, len_bytes: usize) -> Result<Self> {
        let stride_bytes = len_bytes.max(1).checked_next_multiple_of(ALIGN_BYTES);
        let whole_bytes = stride_bytes.and_then(|stride| stride.checked_mul(count as usize));
        let (Some(stride_bytes), Some(whole_bytes), true) = (stride_bytes, whole_bytes, count > 0) else {
            return Err(Error::invalid("register buffers", format!("{count} buffers of {len_bytes} bytes")));
        };
        let region = Arc::new(Region::alloc(&**nic.pd(), whole_bytes, Access::LOCAL_WRITE)?);
        let free = Mutex::new((0..count).rev().collect());
        Ok(Self(Arc::new(Pool { region, count, len_bytes, stride_bytes, free })))
    }

    /// Returns a free buffer; `None` if there is none. It contains the data of its last use.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let slot = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Buffer { pool: self.0.clone(), slot, is_lost: false })
    }
}

impl Pool {
    /// Returns the offset of a buffer in the region.
    pub(super) fn offset(&self, slot: u32) -> usize {
        slot as usize * self.stride_bytes
    }
}

impl Buffer {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pool.len_bytes
    }

    fn place(&self, offset: usize, len_bytes: usize) -> usize {
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.pool.len_bytes);
        assert!(
            is_inside,
            "{len_bytes} bytes at {offset} are outside of a buffer of {}",
            self.pool.len_bytes
        );
        self.pool.offset(self.slot) + offset
    }

    /// Copies `bytes` into the buffer.
    ///
    /// # Panics
    /// If they do not fit at `offset`.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.pool.region.copy_in(self.place(offset, bytes.len()), bytes);
    }

    /// Copies bytes from the buffer to `to`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.pool.region.copy_out(self.place(offset, to.len()), to);
    }

    /// Returns a copy of a range.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[must_use]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = self.place(range.start, range.len());
        self.pool.region.append_to(at, range.len(), &mut bytes);
        bytes
    }

    /// Drops the buffer without making it available again.
    pub(super) fn lose(mut self) {
        self.is_lost = true;
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("slot", &self.slot).field("len_bytes", &self.len_bytes()).finish()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.is_lost {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
        }
    }
}

/// Memory to which peers WRITE and from which they READ, through the grant that they receive. They may do so at any
/// time, so it is accessed by copies, which may be torn while a peer writes. Dropping it ends their access.
pub struct SharedMemory(Region);

farcall_verbs::opaque_debug!(SharedMemory);

impl SharedMemory {
    /// Allocates and registers at least `len_bytes` bytes filled with zeros. `access` is the access of peers.
    ///
    /// # Errors
    /// If memory or regions are exhausted, or the access flags are invalid.
    pub fn new(nic: &Nic, len_bytes: usize, access: Access) -> Result<Self> {
        Region::alloc(&**nic.pd(), len_bytes, access).map(Self)
    }

    /// Returns the grant that a peer needs for access.
    #[must_use]
    pub fn grant(&self) -> RemoteRegion {
        self.0.remote()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }

    /// Copies `bytes` into the memory.
    ///
    /// # Panics
    /// If they do not fit at `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.copy_in(offset, bytes);
    }

    /// Copies bytes from the memory to `to`.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.0.copy_out(offset, to);
    }
}
