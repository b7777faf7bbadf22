//! The message ring: one per queue pair and direction, with one producer, one consumer and one writer per cache line.
//!
//! A record is published by one store: the first word of its first slot contains a tag derived from the record's
//! position. Before publishing, the producer clears the first word of the slot *after* the record, so that payload of
//! an earlier lap is never taken for a header. A producer that exits before the store has published nothing; there are
//! no reservations that could stay open.

mod consumer;
mod layout;
mod producer;

pub use consumer::{Consumer, CorruptRecord, Record};
pub use layout::{
    ACCEPT, GREETING, HAZARD, HEAD, Layout, NAK, OFFERED, RNR, RNR_TIMER, RQ_POSTED, SLOT_BYTES, TAKEN,
    TAKEN_COUNT, UNCHECKED_RECEIVES, VIOLATION, WANT, WITHDRAWN,
};
pub use producer::Producer;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A SEND whose payload is in the record.
    Send = 1,
    /// A SEND whose payload was placed into the advertised receive.
    SendPlaced = 2,
    /// A WRITE with immediate; the payload is where the WRITE put it.
    WriteImm = 3,
    /// A SEND that was longer than its matching receive.
    TooLong = 4,
    /// The initiator's request was refused access; the connection is broken.
    AccessNak = 5,
    /// Filler up to the end of the ring.
    Pad = 6,
    /// The initiator's request was malformed (a misaligned atomic); the connection is broken.
    InvalidNak = 7,
    /// The initiator requests a buffer for a large SEND; receives are shared.
    Offer = 8,
    /// The initiator could not place a SEND, because the memory of the matching receive is no longer registered.
    BadReceive = 9,
}

impl Kind {
    #[inline]
    /// Returns the kind with this number.
    pub fn from_bits(bits: u8) -> Option<Self> {
        use Kind::{AccessNak, BadReceive, InvalidNak, Offer, Pad, Send, SendPlaced, TooLong, WriteImm};
        [Send, SendPlaced, WriteImm, TooLong, AccessNak, Pad, InvalidNak, Offer, BadReceive]
            .into_iter()
            .find(|kind| *kind as u8 == bits)
    }
}

/// Flag of a record: it carries immediate data.
pub const WITH_IMM: u8 = 1;
/// Flag of a record: the sender requested a solicited event.
pub const SOLICITED: u8 = 2;

/// Length in bytes of a record's header: tag word, then message length and immediate data.
const RECORD_HEADER_BYTES: usize = 16;

const TAG_BITS: u32 = 48;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

/// Returns the tag of a position. It is never zero, and differs from all other tags of the same slot within 2^47 slots.
#[inline]
const fn tag(position: u64) -> u64 {
    (position | 1 << (TAG_BITS - 1)) & TAG_MASK
}

/// Returns the number of slots of a record with `inline_bytes` of payload.
#[inline]
pub const fn slots_for(inline_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES + inline_bytes).div_ceil(SLOT_BYTES) as u64
}

#[cfg(test)]
mod tests;
