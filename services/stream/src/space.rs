//! Where messages are composed.

use farcall_link::Region;

/// Room in the send ring, to compose the next bytes in place; over TCP in private memory.
///
/// A device reads the send ring, so it is reached by pointers and copies only.
pub struct Space<'a> {
    place: Place<'a>,
    room: usize,
    pub(crate) len_bytes: usize,
}

enum Place<'a> {
    Ring { region: &'a Region, at: usize },
    Private(&'a mut [u8]),
}

impl<'a> Space<'a> {
    pub(crate) const fn in_ring(region: &'a Region, at: usize, room: usize) -> Self {
        Self { place: Place::Ring { region, at }, room, len_bytes: 0 }
    }

    pub(crate) const fn in_private(bytes: &'a mut [u8]) -> Self {
        Self { room: bytes.len(), place: Place::Private(bytes), len_bytes: 0 }
    }

    /// How many bytes can still be put.
    #[inline]
    pub const fn room(&self) -> usize {
        self.room - self.len_bytes
    }

    /// Appends as many of these bytes as there is room for; returns how many.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room());
        self.copy_in(self.len_bytes, &bytes[..len]);
        self.len_bytes += len;
        len
    }

    /// Replaces bytes that were put before: a length that is known only now, for example.
    ///
    /// # Panics
    /// If they were not put.
    #[inline]
    pub fn put_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len_bytes, "{} bytes at {at} of {}", bytes.len(), self.len_bytes);
        self.copy_in(at, bytes);
    }

    #[inline]
    fn copy_in(&mut self, to: usize, bytes: &[u8]) {
        match &mut self.place {
            Place::Ring { region, at } => region.copy_in(*at + to, bytes),
            Place::Private(private) => private[to..to + bytes.len()].copy_from_slice(bytes),
        }
    }
}
