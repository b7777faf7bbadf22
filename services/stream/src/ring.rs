//! Mapping of stream positions to ring offsets.

/// A ring that holds the bytes of a stream from position `base` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// The stream position that corresponds to offset 0.
    pub base: u64,
    /// Length of the ring in bytes.
    pub len_bytes: u64,
}

impl Ring {
    /// Returns the number of bytes that may be written at position `written` if the reader is known to have read up to
    /// `read`.
    #[inline]
    pub fn free(self, written: u64, read: u64) -> u64 {
        self.len_bytes.saturating_sub(written.saturating_sub(read.max(self.base)))
    }

    /// Returns the offset of the byte at `position`.
    #[inline]
    pub fn offset(self, position: u64) -> usize {
        (position.wrapping_sub(self.base) % self.len_bytes) as usize
    }

    /// Returns the contiguous bytes from `position` on: offset, and their number, at most `most`.
    #[inline]
    pub fn contiguous(self, position: u64, most: u64) -> (usize, usize) {
        let offset = self.offset(position);
        (offset, most.min(self.len_bytes - offset as u64) as usize)
    }
}

/// Returns the number closest to `near` whose low `bits` bits are those of `low`.
#[inline]
pub(crate) const fn extend(low: u64, bits: u32, near: u64) -> u64 {
    let shift = 64 - bits;
    // The signed distance modulo 2^bits.
    let distance = ((low.wrapping_sub(near) << shift) as i64) >> shift;
    near.wrapping_add(distance as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ring_is_free_from_its_base_on() {
        let ring = Ring { base: 1_000, len_bytes: 64 };
        assert_eq!(ring.free(1_000, 900), 64, "what lies in an earlier ring takes no room in this one");
        assert_eq!(ring.free(1_064, 900), 0);
        assert_eq!(ring.free(1_064, 1_010), 10);
        assert_eq!((ring.offset(1_000), ring.offset(1_063), ring.offset(1_064)), (0, 63, 0));
        assert_eq!(ring.contiguous(1_060, 10), (60, 4));
    }

    proptest! {
        #[test]
        fn a_position_is_known_by_its_low_bits(near in any::<u64>(), away in -(1i64 << 28)..(1i64 << 28)) {
            let position = near.wrapping_add(away as u64);
            prop_assert_eq!(extend(position & ((1 << 30) - 1), 30, near), position);
            prop_assert_eq!(extend(position & ((1 << 48) - 1), 48, near), position);
        }

        #[test]
        fn pieces_of_a_ring_cover_every_byte_once(
            base in 0u64..1 << 40,
            len in 1u64..500,
            at in 0u64..5_000,
            most in 0u64..500,
        ) {
            let ring = Ring { base, len_bytes: len };
            let most = most.min(len);
            let (offset, first) = ring.contiguous(base + at, most);
            let (second_offset, second) = ring.contiguous(base + at + first as u64, most - first as u64);
            prop_assert_eq!((first + second) as u64, most);
            prop_assert!(offset + first <= len as usize && second_offset + second <= len as usize);
            prop_assert!(second == 0 || (second_offset == 0 && second <= offset));
        }
    }
}
