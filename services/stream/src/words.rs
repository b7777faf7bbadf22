//! The words that one end WRITEs into the other's memory.
//!
//! Each word has a WRITE of its own, so that it is never seen in parts, and says something that is true by itself in
//! whatever order words become visible; with one exception: [`WRITTEN`] promises that the bytes before it have landed,
//! and where WRITEs land in any order its reader believes only immediate data.

use crate::ring::extend;

/// How many bytes the peer has written. In a cache line of its own: this is what a reader looks at again and again.
pub(crate) const WRITTEN: usize = 0;
/// How many of our bytes the peer has read: what is before that may be overwritten.
pub(crate) const CONSUMED: usize = 64;
/// How many of our wake-ups the peer has taken.
pub(crate) const WAKES_TAKEN: usize = 72;
/// Whether the peer wants to be woken: a [`Wish`].
pub(crate) const WISH: usize = 80;
/// From which byte on the peer wakes us: a [`Promise`].
pub(crate) const PROMISE: usize = 88;
/// One more than the length of the peer's whole stream, when it is known; else 0.
pub(crate) const END: usize = 96;
/// From which byte on the peer writes into the ring that we offered last: a [`Promise`].
pub(crate) const TURN: usize = 104;
/// A ring that the peer offers; to be read only when the wake-up that came with it says so.
pub(crate) const OFFER: usize = 128;
/// What the words take.
pub(crate) const WORDS_BYTES: usize = 192;

/// Whether an end wants to be woken, numbered so that the promise that answers it can be told from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Its number; never 0.
    pub number: u16,
    /// Whether every word is to come with a wake-up.
    pub is_woken: bool,
}

impl Wish {
    pub const FIRST: Self = Self { number: 1, is_woken: true };

    pub const fn encode(self) -> u64 {
        (self.number as u64) << 1 | self.is_woken as u64
    }

    /// `None` as long as the peer has not said anything.
    pub const fn decode(word: u64) -> Option<Self> {
        let number = (word >> 1) as u16;
        if number == 0 { None } else { Some(Self { number, is_woken: word & 1 == 1 }) }
    }

    pub const fn next(self, is_woken: bool) -> Self {
        let number = if self.number == u16::MAX { 1 } else { self.number + 1 };
        Self { number, is_woken }
    }
}

/// The answer to a wish: all words that follow the byte `from` wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// The number of the wish.
    pub number: u16,
    /// The position in the stream of who promises.
    pub from: u64,
}

const POSITION_BITS: u32 = 48;

impl Promise {
    pub const fn encode(self) -> u64 {
        (self.number as u64) << POSITION_BITS | self.from & ((1 << POSITION_BITS) - 1)
    }

    /// `near` is a position not further away than a ring.
    pub const fn decode(word: u64, near: u64) -> Self {
        Self { number: (word >> POSITION_BITS) as u16, from: extend(word, POSITION_BITS, near) }
    }
}

const IMM_BITS: u32 = 30;

/// The immediate data of a wake-up: how much was written when it was posted.
pub(crate) const fn imm_of(written: u64) -> u32 {
    written as u32 & ((1 << IMM_BITS) - 1)
}

/// In immediate data: what landed with it is an [`OFFER`].
pub(crate) const IMM_OFFER: u32 = 1 << 31;

/// How much was written, from immediate data. `near` is a position not further away than a ring.
pub(crate) const fn written_of(imm: u32, near: u64) -> u64 {
    extend(imm as u64, IMM_BITS, near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_and_promises_travel() {
        for wish in [Wish::FIRST, Wish::FIRST.next(false), Wish { number: u16::MAX, is_woken: true }] {
            assert_eq!(Wish::decode(wish.encode()), Some(wish));
            assert_ne!(wish.next(true).number, 0);
        }
        assert_eq!(Wish::decode(0), None);
        for from in [0, 77, (1 << 48) - 1, 1 << 48, (3 << 48) + 5] {
            let promise = Promise { number: 40_000, from };
            assert_eq!(Promise::decode(promise.encode(), from.saturating_sub(4_000_000)), promise);
            assert_eq!(written_of(imm_of(from), from.saturating_sub(4_000_000)), from);
        }
    }
}
