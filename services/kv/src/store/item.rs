//! Layout of an item in its block: a fixed header, the key, the value.

use super::arena::{Arena, BLOCK_HEADER_BYTES, GRANULE_BYTES, Granule};

/// Length of an item without key and value in bytes, including the block header of the arena.
pub const ITEM_OVERHEAD_BYTES: usize = BLOCK_HEADER_BYTES + HEADER_BYTES;

const HEADER_BYTES: usize = 40;

/// State bits of an item.
pub(crate) mod state {
    /// Read since it was stored.
    pub(crate) const FETCHED: u8 = 1 << 0;
    /// Used since the eviction hand last visited it.
    pub(crate) const REFERENCED: u8 = 1 << 1;
    /// Marked stale by an invalidation.
    pub(crate) const STALE: u8 = 1 << 2;
    /// A client was instructed to recache it.
    pub(crate) const WIN_SENT: u8 = 1 << 3;
}

/// The decoded header. Times are in milliseconds (or seconds) of the partition's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cas: u64,
    /// Expiration time; 0: never.
    pub(crate) expires_ms: u64,
    pub(crate) flags: u32,
    pub(crate) value_len: u32,
    pub(crate) bucket: u32,
    pub(crate) accessed_s: u32,
    pub(crate) key_len: u8,
    pub(crate) state: u8,
}

impl Header {
    #[inline]
    pub(crate) fn read(arena: &Arena, at: Granule) -> Header {
        let start = at as usize * GRANULE_BYTES + BLOCK_HEADER_BYTES;
        let raw: &[u8; HEADER_BYTES] =
            arena.bytes()[start..start + HEADER_BYTES].try_into().expect("one header");
        Header {
            cas: word64(raw, 0),
            expires_ms: word64(raw, 8),
            flags: word32(raw, 16),
            value_len: word32(raw, 20),
            bucket: word32(raw, 24),
            accessed_s: word32(raw, 28),
            key_len: raw[32],
            state: raw[33],
        }
    }

    pub(crate) fn write(&self, arena: &mut Arena, at: Granule) {
        let start = at as usize * GRANULE_BYTES + BLOCK_HEADER_BYTES;
        let raw: &mut [u8; HEADER_BYTES] =
            (&mut arena.bytes_mut()[start..start + HEADER_BYTES]).try_into().expect("one header");
        raw[0..8].copy_from_slice(&self.cas.to_ne_bytes());
        raw[8..16].copy_from_slice(&self.expires_ms.to_ne_bytes());
        raw[16..20].copy_from_slice(&self.flags.to_ne_bytes());
        raw[20..24].copy_from_slice(&self.value_len.to_ne_bytes());
        raw[24..28].copy_from_slice(&self.bucket.to_ne_bytes());
        raw[28..32].copy_from_slice(&self.accessed_s.to_ne_bytes());
        raw[32] = self.key_len;
        raw[33] = self.state;
    }

    /// Records a use. Writes only changed fields, so that the cache line of a frequently used item stays clean.
    #[inline]
    pub(crate) fn note_use(&self, arena: &mut Arena, at: Granule, now_s: u32) {
        let start = at as usize * GRANULE_BYTES + BLOCK_HEADER_BYTES;
        let used = self.state | state::FETCHED | state::REFERENCED;
        if used != self.state {
            arena.bytes_mut()[start + 33] = used;
        }
        if now_s != self.accessed_s {
            arena.bytes_mut()[start + 28..start + 32].copy_from_slice(&now_s.to_ne_bytes());
        }
    }

    /// Returns the number of granules of a block for such an item.
    pub(crate) fn granules(key_len: usize, value_len: usize) -> u32 {
        Arena::granules_for(HEADER_BYTES + key_len + value_len)
    }
}

/// Returns the range of the key of the item at `at` in the arena.
#[inline]
pub(crate) fn key(arena: &Arena, at: Granule, header: &Header) -> std::ops::Range<usize> {
    let start = at as usize * GRANULE_BYTES + ITEM_OVERHEAD_BYTES;
    debug_assert!(start + usize::from(header.key_len) <= arena.bytes().len());
    start..start + usize::from(header.key_len)
}

/// Returns the range of the value of the item at `at` in the arena.
#[inline]
pub(crate) fn value(at: Granule, header: &Header) -> std::ops::Range<usize> {
    let start = at as usize * GRANULE_BYTES + ITEM_OVERHEAD_BYTES + usize::from(header.key_len);
    start..start + header.value_len as usize
}

#[inline]
fn word64(raw: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(raw[at..at + 8].try_into().expect("eight bytes"))
}

#[inline]
fn word32(raw: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(raw[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_survives_memory() {
        let mut arena = Arena::new(64).unwrap();
        let at = arena.allocate(Header::granules(3, 5)).unwrap();
        let header = Header {
            cas: u64::MAX - 1,
            expires_ms: 1 << 41,
            flags: 0xdead_beef,
            value_len: 5,
            bucket: 77,
            accessed_s: 99,
            key_len: 3,
            state: state::STALE,
        };
        header.write(&mut arena, at);
        assert_eq!(Header::read(&arena, at), header);
        header.note_use(&mut arena, at, 100);
        let used = Header::read(&arena, at);
        assert_eq!((used.accessed_s, used.state), (100, state::STALE | state::FETCHED | state::REFERENCED));
        assert_eq!(value(at, &header).start, key(&arena, at, &header).end);
    }

    #[test]
    fn the_papers_item_of_16_and_32_bytes_takes_96_bytes() {
        assert_eq!(Header::granules(16, 32) as usize * GRANULE_BYTES, 96);
    }
}
