//! The message ring: one per queue pair and direction, one producer, one consumer, one writer per cache line.
//!
//! A record is published by one store: the first word of its first slot carries a tag made of the record's
//! position. Before publishing, the producer clears the first word of the slot *after* the record, so payload of an
//! earlier lap is never mistaken for a header. A producer that dies before the store has published nothing; there is no
//! reservation that could be left open.

mod consumer;
mod layout;
mod producer;

pub use consumer::{Consumer, Garbage, Record};
pub use layout::{
    ACCEPT, GREETING, HAZARD, HEAD, Layout, NAK, OFFERED, RNR, RNR_TIMER, RQ_POSTED, SLOT_BYTES, TAKEN,
    TAKEN_COUNT, UNCHECKED_RECEIVES, VIOLATION, WANT, WITHDRAWN,
};
pub use producer::Producer;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A SEND whose payload is in the record.
    Send = 1,
    /// A SEND whose payload was placed into the advertised receive.
    SendPlaced = 2,
    /// A WRITE with immediate; the payload is where the WRITE put it.
    WriteImm = 3,
    /// A SEND that was longer than the receive it met.
    TooLong = 4,
    /// The initiator's request was refused for access; the connection is broken.
    AccessNak = 5,
    /// Filler up to the end of the ring.
    Pad = 6,
    /// The initiator's request was malformed (a misaligned atomic); the connection is broken.
    InvalidNak = 7,
    /// The initiator asks for a place for a large SEND; receives are shared.
    Offer = 8,
    /// The initiator could not place a SEND: the memory of the receive it met is no longer registered.
    BadReceive = 9,
}

impl Kind {
    #[inline]
    /// The kind with this number.
    pub fn from_bits(bits: u8) -> Option<Self> {
        use Kind::{AccessNak, BadReceive, InvalidNak, Offer, Pad, Send, SendPlaced, TooLong, WriteImm};
        [Send, SendPlaced, WriteImm, TooLong, AccessNak, Pad, InvalidNak, Offer, BadReceive]
            .into_iter()
            .find(|kind| *kind as u8 == bits)
    }
}

/// Flag of a record: it carries immediate data.
pub const WITH_IMM: u8 = 1;
/// Flag of a record: the sender asked for a solicited event.
pub const SOLICITED: u8 = 2;

/// Bytes of a record before its payload: tag word, then length and immediate.
const RECORD_HEADER_BYTES: usize = 16;

const TAG_BITS: u32 = 48;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

/// The tag of a position: never zero, and different from every other that the same slot held within 2^47 slots.
#[inline]
const fn tag(position: u64) -> u64 {
    (position | 1 << (TAG_BITS - 1)) & TAG_MASK
}

/// Slots of a record with `inline_bytes` of payload.
#[inline]
pub const fn slots_for(inline_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES + inline_bytes).div_ceil(SLOT_BYTES) as u64
}

#[cfg(test)]
mod tests;
