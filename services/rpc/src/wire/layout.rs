//! Layout of a region of slots.

use super::Seq;

/// Bytes of a tail.
pub const TAIL_BYTES: usize = 8;

/// Rounds up to a multiple of 8 bytes.
#[inline]
pub const fn padded(len_bytes: usize) -> usize {
    (len_bytes + 7) & !7
}

/// Returns the length of a complete message in bytes.
#[inline]
pub const fn message_bytes(header_bytes: usize, payload_bytes: usize) -> usize {
    padded(header_bytes + payload_bytes) + TAIL_BYTES
}

/// The slots of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    window: u32,
    slot_bytes: usize,
    header_bytes: usize,
}

impl Slots {
    /// `window` (a power of two) slots of `slot_bytes`, for messages with headers of `header_bytes`.
    pub const fn new(window: u16, slot_bytes: u32, header_bytes: usize) -> Self {
        Self { window: window as u32, slot_bytes: slot_bytes as usize, header_bytes }
    }

    /// Returns the index of the slot of a message.
    #[inline]
    pub const fn index(&self, seq: Seq) -> usize {
        (seq.0 & (self.window - 1)) as usize
    }

    /// Returns the offset of the slot of a message, in bytes.
    #[inline]
    pub const fn offset(&self, seq: Seq) -> usize {
        self.index(seq) * self.slot_bytes
    }

    /// Bytes of one slot.
    #[inline]
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the number of payload bytes that fit into one slot.
    #[inline]
    pub const fn capacity(&self) -> usize {
        self.slot_bytes - self.header_bytes - TAIL_BYTES - (self.header_bytes & 7)
    }

    /// Returns the offset of a message's tail in its slot.
    #[inline]
    pub const fn tail_at(&self, payload_bytes: usize) -> usize {
        padded(self.header_bytes + payload_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES};
    use super::*;

    #[test]
    fn a_full_slot_ends_with_its_tail() {
        for header in [REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES] {
            for slot_bytes in [128, 192, 4_224] {
                let slots = Slots::new(16, slot_bytes, header);
                let end = slots.tail_at(slots.capacity()) + TAIL_BYTES;
                assert_eq!(end, slot_bytes as usize);
            }
        }
    }

    #[test]
    fn small_messages_fit_cache_lines() {
        assert_eq!(message_bytes(REQUEST_HEADER_BYTES, 64), 120, "a 64-byte request: two lines");
        assert_eq!(message_bytes(RESPONSE_HEADER_BYTES, 32), 64, "a 32-byte result: one line");
    }

    #[test]
    fn slots_go_round() {
        let slots = Slots::new(4, 128, REQUEST_HEADER_BYTES);
        let offsets: Vec<usize> = (0..6).map(|i| slots.offset(Seq(u32::MAX - 1).plus(i))).collect();
        assert_eq!(offsets, [256, 384, 0, 128, 256, 384]);
    }
}
