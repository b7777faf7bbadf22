//! The receiving side of a ring.

use super::{Kind, Layout, RECORD_HEADER_BYTES, SLOT_BYTES, TAG_BITS, TAG_MASK, layout, slots_for, tag};
use crate::SharedMem;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The receiving side of a ring.
pub struct Consumer {
    mem: SharedMem,
    ring_at: u32,
    /// A power of two.
    slots: u32,
    position: u64,
    published: u64,
}

/// A record, read once and validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of the record.
    pub kind: Kind,
    /// Flags: [`WITH_IMM`](super::WITH_IMM), [`SOLICITED`](super::SOLICITED).
    pub flags: u8,
    /// Length of the message in bytes.
    pub len_bytes: u32,
    /// Immediate data.
    pub imm: u32,
    /// Offset of the payload in the segment, if the record contains it.
    pub payload_at: usize,
    slots: u64,
}

/// Error: the peer wrote an invalid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptRecord;

impl Consumer {
    /// Creates the consumer of a ring in which nothing has been sent.
    pub fn new(mem: SharedMem, layout: &Layout) -> Self {
        Self { mem, ring_at: layout.ring_at() as u32, slots: layout.ring_slots, position: 0, published: 0 }
    }

    #[inline]
    fn slot_at(&self, position: u64) -> usize {
        self.ring_at as usize + (position as usize & (self.slots as usize - 1)) * SLOT_BYTES
    }

    /// Returns the number of slots from the position to the end of the ring.
    #[inline]
    fn to_end(&self) -> u64 {
        u64::from(self.slots) - (self.position & (u64::from(self.slots) - 1))
    }

    /// Returns whether a record is available; costs one load.
    #[inline]
    pub fn has_record(&self) -> bool {
        self.mem.load(self.slot_at(self.position), Relaxed) & TAG_MASK == tag(self.position)
    }

    /// Returns the next record, which stays in place until `advance`. Skips filler.
    ///
    /// # Errors
    /// Returns [`CorruptRecord`] if the producer wrote an invalid record.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, CorruptRecord> {
        loop {
            let at = self.slot_at(self.position);
            let word = self.mem.load(at, Acquire);
            if word & TAG_MASK != tag(self.position) {
                return Ok(None);
            }
            let kind = Kind::from_bits((word >> TAG_BITS) as u8).ok_or(CorruptRecord)?;
            let sizes = self.mem.load(at + 8, Relaxed);
            let len_bytes = sizes as u32;
            let to_end = self.to_end();
            let slots = match kind {
                Kind::Pad => u64::from(len_bytes),
                Kind::Send => slots_for(len_bytes as usize),
                _ => 1,
            };
            if slots == 0 || slots > to_end {
                return Err(CorruptRecord);
            }
            if kind == Kind::Pad {
                self.position += slots;
                continue;
            }
            let (flags, imm) = ((word >> (TAG_BITS + 8)) as u8, (sizes >> 32) as u32);
            return Ok(Some(Record {
                kind,
                flags,
                len_bytes,
                imm,
                payload_at: at + RECORD_HEADER_BYTES,
                slots,
            }));
        }
    }

    /// Consumes the record that `peek` returned.
    #[inline]
    pub fn advance(&mut self, record: &Record) {
        self.position += record.slots;
    }

    /// Returns the consumed slots to the producer; returns whether there were any.
    #[inline]
    pub fn publish_head(&mut self) -> bool {
        if self.published == self.position {
            return false;
        }
        self.published = self.position;
        self.mem.store(layout::HEAD, self.position, Release);
        true
    }

    /// Returns the segment's memory.
    #[inline]
    pub fn memory(&self) -> &SharedMem {
        &self.mem
    }
}
