//! Buffer in which the application composes bytes to send.

use farcall_link::Region;

/// Free space in the send ring in which the next bytes are composed in place; private memory if the stream goes over
/// TCP.
///
/// The device may read the send ring at any time, so it is accessed through pointers and copies only, never through
/// references.
pub struct WriteBuffer<'a> {
    memory: BufferMemory<'a>,
    room: usize,
    pub(crate) len_bytes: usize,
}

farcall_verbs::opaque_debug!(WriteBuffer<'_>);

enum BufferMemory<'a> {
    Ring { region: &'a Region, at: usize },
    Private(&'a mut [u8]),
}

impl<'a> WriteBuffer<'a> {
    pub(crate) const fn in_ring(region: &'a Region, at: usize, room: usize) -> Self {
        Self { memory: BufferMemory::Ring { region, at }, room, len_bytes: 0 }
    }

    pub(crate) const fn in_private(bytes: &'a mut [u8]) -> Self {
        Self { room: bytes.len(), memory: BufferMemory::Private(bytes), len_bytes: 0 }
    }

    /// Returns the number of bytes that can still be appended.
    #[inline]
    pub const fn room(&self) -> usize {
        self.room - self.len_bytes
    }

    /// Appends as many of `bytes` as fit. Returns their number.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room());
        self.copy_in(self.len_bytes, &bytes[..len]);
        self.len_bytes += len;
        len
    }

    /// Replaces bytes that were appended before, for example a length that becomes known later.
    ///
    /// # Panics
    /// If the range was not appended before.
    #[inline]
    pub fn put_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len_bytes, "{} bytes at {at} of {}", bytes.len(), self.len_bytes);
        self.copy_in(at, bytes);
    }

    #[inline]
    fn copy_in(&mut self, to: usize, bytes: &[u8]) {
        match &mut self.memory {
            BufferMemory::Ring { region, at } => region.copy_in(*at + to, bytes),
            BufferMemory::Private(private) => private[to..to + bytes.len()].copy_from_slice(bytes),
        }
    }
}
