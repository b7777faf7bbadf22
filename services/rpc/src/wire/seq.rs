//! Sequence numbers of the messages of one session.

/// Number of a message of a session. Numbers begin at 1 and wrap around. Slots are reused every `window` (a power of
/// two) numbers, so two messages whose numbers coincide after 2³² messages are never in flight together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[repr(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// The number of the first message.
    pub const FIRST: Self = Self(1);

    /// Returns the following number.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the preceding number.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Returns the number that is `count` later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns the distance from `earlier` to this number.
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns whether this number precedes `other`. The two must be less than 2³¹ apart.
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// Distance between a call's number and its message's number, from the last request of full form: requests of compact
/// form do not contain the call's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallBase(u64);

impl CallBase {
    /// Returns the distance in this message.
    #[inline]
    pub const fn of(seq: Seq, call_id: u64) -> Self {
        Self(call_id.wrapping_sub(seq.0 as u64))
    }

    /// Returns the number of the call in a message of compact form.
    #[inline]
    pub const fn call_id(self, seq: Seq) -> u64 {
        self.0.wrapping_add(seq.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::{CallBase, Seq};

    #[test]
    fn a_base_does_not_hold_beyond_the_wrap() {
        let (last, id) = (Seq(u32::MAX), 1 << 40);
        let base = CallBase::of(last, id);
        assert_eq!(base.call_id(last), id);
        assert_eq!(base, CallBase::of(last.before(), id - 1));
        assert_ne!(base, CallBase::of(last.next(), id + 1));
    }

    #[test]
    fn order_survives_the_wrap() {
        let last = Seq(u32::MAX);
        assert_eq!(last.next(), Seq(0));
        assert!(last.is_before(last.next()) && !last.next().is_before(last) && !last.is_before(last));
        assert_eq!(last.plus(3).distance_from(last), 3);
    }
}
