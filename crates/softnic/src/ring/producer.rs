//! The sending end of a ring.

use super::{Kind, Layout, RECORD_HEADER_BYTES, SLOT_BYTES, TAG_BITS, layout, slots_for, tag};
use crate::shared::SharedMem;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) struct Producer {
    mem: SharedMem,
    ring_at: usize,
    slots: u64,
    position: u64,
    head_seen: u64,
}

impl Producer {
    pub(crate) fn new(mem: SharedMem, layout: &Layout) -> Self {
        Self { mem, ring_at: layout.ring_at(), slots: layout.ring_slots, position: 0, head_seen: 0 }
    }

    fn slot_at(&self, position: u64) -> usize {
        self.ring_at + (position & (self.slots - 1)) as usize * SLOT_BYTES
    }

    /// Whether a record of `inline_bytes` fits now and leaves `spare` slots free. One slot more is always kept, for the
    /// word that is cleared ahead.
    #[inline]
    pub(crate) fn has_room(&mut self, inline_bytes: usize, spare: u64) -> bool {
        let need = slots_for(inline_bytes);
        let to_end = self.slots - (self.position & (self.slots - 1));
        let pad = if to_end < need { to_end } else { 0 };
        let need = pad + need + 1 + spare;
        if self.fits(need) {
            return true;
        }
        let head = self.mem.load(layout::HEAD, Acquire);
        // A head beyond what was produced, or one that runs backwards, is a broken peer's: it only hurts itself.
        if head <= self.position && head >= self.head_seen {
            self.head_seen = head;
        }
        self.fits(need)
    }

    fn fits(&self, need: u64) -> bool {
        self.position - self.head_seen + need <= self.slots
    }

    /// Where the payload of the next record goes. Call only after `has_room(inline_bytes, _)` was true; publishes the
    /// filler if the record would cross the end.
    #[inline]
    pub(crate) fn payload_at(&mut self, inline_bytes: usize) -> usize {
        let need = slots_for(inline_bytes);
        let to_end = self.slots - (self.position & (self.slots - 1));
        if to_end < need {
            self.publish_slots(Kind::Pad, 0, to_end as u32, 0, to_end);
        }
        self.slot_at(self.position) + RECORD_HEADER_BYTES
    }

    /// Publishes the record whose payload of `inline_bytes` was put at `payload_at`.
    #[inline]
    pub(crate) fn publish(&mut self, kind: Kind, flags: u8, len_bytes: u32, imm: u32, inline_bytes: usize) {
        self.publish_slots(kind, flags, len_bytes, imm, slots_for(inline_bytes));
    }

    fn publish_slots(&mut self, kind: Kind, flags: u8, len_bytes: u32, imm: u32, slots: u64) {
        let at = self.slot_at(self.position);
        self.mem.store(self.slot_at(self.position + slots), 0, Relaxed);
        self.mem.store(at + 8, u64::from(len_bytes) | u64::from(imm) << 32, Relaxed);
        let word =
            tag(self.position) | u64::from(kind as u8) << TAG_BITS | u64::from(flags) << (TAG_BITS + 8);
        self.mem.store(at, word, Release);
        self.position += slots;
    }

    pub(crate) fn memory(&self) -> &SharedMem {
        &self.mem
    }
}
