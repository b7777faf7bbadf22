//! The control words that one end WRITEs into the other's memory.
//!
//! Each control word is written by a WRITE of its own, so that it is never read partially. Each is valid independently
//! of the order in which control words become visible, with one exception: [`WRITTEN`] states that the bytes before it
//! have been placed. If WRITEs may be placed in any order, the reader uses only immediate data instead.

use crate::ring::extend;

/// Number of bytes that the peer has written. In a cache line of its own, because the reader polls it.
pub(crate) const WRITTEN: usize = 0;
/// Number of our bytes that the peer has read: bytes before this position may be overwritten.
pub(crate) const CONSUMED: usize = 64;
/// Number of our wake-ups that the peer has consumed.
pub(crate) const WAKES_TAKEN: usize = 72;
/// The peer's wake request: a [`WakeRequest`].
pub(crate) const WAKE_REQUEST: usize = 80;
/// The peer's acknowledgement of our wake request: a [`WakeAck`].
pub(crate) const WAKE_ACK: usize = 88;
/// One more than the length of the peer's complete stream, when it is known; otherwise 0.
pub(crate) const END: usize = 96;
/// Position from which on the peer writes into the ring that we offered last: a [`WakeAck`].
pub(crate) const TURN: usize = 104;
/// A ring that the peer offers. It may be read only after the wake-up that was posted with it.
pub(crate) const OFFER: usize = 128;
/// Length of the area of control words in bytes.
pub(crate) const WORDS_BYTES: usize = 192;

/// A wake request: whether an end requests wake-ups. It is numbered so that its acknowledgement can be distinguished
/// from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeRequest {
    /// Its number; never 0.
    pub number: u16,
    /// `true` if every control word must be sent with a wake-up.
    pub is_woken: bool,
}

impl WakeRequest {
    pub const FIRST: Self = Self { number: 1, is_woken: true };

    pub const fn encode(self) -> u64 {
        (self.number as u64) << 1 | self.is_woken as u64
    }

    /// Returns `None` until the peer has sent its first request.
    pub const fn decode(word: u64) -> Option<Self> {
        let number = (word >> 1) as u16;
        if number == 0 { None } else { Some(Self { number, is_woken: word & 1 == 1 }) }
    }

    pub const fn next(self, is_woken: bool) -> Self {
        let number = if self.number == u16::MAX { 1 } else { self.number + 1 };
        Self { number, is_woken }
    }
}

/// The acknowledgement of a wake request: every control word sent after the byte `from` is a wake-up. [`TURN`] uses
/// the same encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeAck {
    /// Number of the wake request (of the offer in [`TURN`]).
    pub number: u16,
    /// Position in the stream of the sender of this acknowledgement.
    pub from: u64,
}

const POSITION_BITS: u32 = 48;

impl WakeAck {
    pub const fn encode(self) -> u64 {
        (self.number as u64) << POSITION_BITS | self.from & ((1 << POSITION_BITS) - 1)
    }

    /// Decodes `word`. `near` must be within the length of a ring of the encoded position.
    pub const fn decode(word: u64, near: u64) -> Self {
        Self { number: (word >> POSITION_BITS) as u16, from: extend(word, POSITION_BITS, near) }
    }
}

const IMM_BITS: u32 = 30;

/// Returns the immediate data of a wake-up: the low bits of `written`, the number of bytes written when it was posted.
pub(crate) const fn imm_of(written: u64) -> u32 {
    written as u32 & ((1 << IMM_BITS) - 1)
}

/// Flag in immediate data: the WRITE placed an [`OFFER`].
pub(crate) const IMM_OFFER: u32 = 1 << 31;

/// Returns the number of bytes written, decoded from immediate data. `near` must be within the length of a ring of it.
pub(crate) const fn written_of(imm: u32, near: u64) -> u64 {
    extend(imm as u64, IMM_BITS, near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_wake_requests_and_acknowledgements() {
        for request in [
            WakeRequest::FIRST,
            WakeRequest::FIRST.next(false),
            WakeRequest { number: u16::MAX, is_woken: true },
        ] {
            assert_eq!(WakeRequest::decode(request.encode()), Some(request));
            assert_ne!(request.next(true).number, 0);
        }
        assert_eq!(WakeRequest::decode(0), None);
        for from in [0, 77, (1 << 48) - 1, 1 << 48, (3 << 48) + 5] {
            let ack = WakeAck { number: 40_000, from };
            assert_eq!(WakeAck::decode(ack.encode(), from.saturating_sub(4_000_000)), ack);
            assert_eq!(written_of(imm_of(from), from.saturating_sub(4_000_000)), from);
        }
    }
}
