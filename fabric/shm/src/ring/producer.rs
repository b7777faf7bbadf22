//! The sending side of a ring.

use super::{Kind, Layout, RECORD_HEADER_BYTES, SLOT_BYTES, TAG_BITS, layout, slots_for, tag};
use crate::SharedMem;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Minimum length in slots of a lap that may end early, if the consumer has left the beginning of the ring. A ring that
/// holds little then stays in the caches and on one page, instead of moving through all of its memory.
const SHORT_LAP_SLOTS: u32 = if cfg!(loom) { 4 } else { 128 };

/// The sending side of a ring.
pub struct Producer {
    mem: SharedMem,
    ring_at: u32,
    /// A power of two.
    slots: u32,
    position: u64,
    head_seen: u64,
    /// Number of filler slots before the next record, as computed by `has_room`.
    pad: u32,
}

impl Producer {
    /// Creates the producer of a ring in which nothing has been sent.
    pub fn new(mem: SharedMem, layout: &Layout) -> Self {
        Self {
            mem,
            ring_at: layout.ring_at() as u32,
            slots: layout.ring_slots,
            position: 0,
            head_seen: 0,
            pad: 0,
        }
    }

    #[inline]
    fn slot_at(&self, position: u64) -> usize {
        self.ring_at as usize + (position as usize & (self.slots as usize - 1)) * SLOT_BYTES
    }

    /// Returns whether a record of `inline_bytes` fits now and leaves `spare` slots free. One additional slot always
    /// remains free, for the word that is cleared ahead.
    #[inline]
    pub fn has_room(&mut self, inline_bytes: usize, spare: u64) -> bool {
        let record = slots_for(inline_bytes);
        let need = record + 1 + spare;
        self.fits(record, need) || {
            self.load_head();
            self.fits(record, need)
        }
    }

    /// Reads the position of the consumer: a load of a line that the consumer writes.
    #[inline]
    pub fn load_head(&mut self) {
        let head = self.mem.load(layout::HEAD, Acquire);
        // A head beyond the produced slots, or one that runs backwards, is written by a faulty peer and ignored; it
        // only harms that peer.
        if head <= self.position && head >= self.head_seen {
            self.head_seen = head;
        }
    }

    /// Returns whether `need` slots are free after the filler that a record of `record` slots requires before it.
    #[inline]
    fn fits(&mut self, record: u64, need: u64) -> bool {
        let free = u64::from(self.slots) - (self.position - self.head_seen);
        let offset = self.position as u32 & (self.slots - 1);
        let to_end = self.slots - offset;
        let begins_anew =
            u64::from(to_end) < record || (offset >= SHORT_LAP_SLOTS && u64::from(to_end) + need <= free);
        self.pad = if begins_anew { to_end } else { 0 };
        u64::from(self.pad) + need <= free
    }

    /// Returns the offset for the payload of the next record. Call it only after `has_room(inline_bytes, _)` returned
    /// true. Publishes the filler if there is any.
    #[inline]
    pub fn payload_at(&mut self) -> usize {
        let pad = std::mem::take(&mut self.pad);
        if pad > 0 {
            self.publish_slots(Kind::Pad, 0, pad, 0, pad.into());
        }
        self.slot_at(self.position) + RECORD_HEADER_BYTES
    }

    /// Publishes the record whose payload of `inline_bytes` was written at `payload_at`.
    #[inline]
    pub fn publish(&mut self, kind: Kind, flags: u8, len_bytes: u32, imm: u32, inline_bytes: usize) {
        self.publish_slots(kind, flags, len_bytes, imm, slots_for(inline_bytes));
    }

    /// Publishes a record without payload. Call it only after `has_room(0, _)` returned true.
    #[inline]
    pub fn publish_empty(&mut self, kind: Kind, flags: u8, len_bytes: u32, imm: u32) {
        self.payload_at();
        self.publish(kind, flags, len_bytes, imm, 0);
    }

    #[inline]
    fn publish_slots(&mut self, kind: Kind, flags: u8, len_bytes: u32, imm: u32, slots: u64) {
        let at = self.slot_at(self.position);
        self.mem.store(self.slot_at(self.position + slots), 0, Relaxed);
        self.mem.store(at + 8, u64::from(len_bytes) | u64::from(imm) << 32, Relaxed);
        let word =
            tag(self.position) | u64::from(kind as u8) << TAG_BITS | u64::from(flags) << (TAG_BITS + 8);
        self.mem.store(at, word, Release);
        self.position += slots;
    }

    /// Returns the number of slots produced.
    #[cfg(all(test, loom))]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the segment's memory.
    #[inline]
    pub fn memory(&self) -> &SharedMem {
        &self.mem
    }
}
