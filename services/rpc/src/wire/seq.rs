//! Sequence numbers of the messages of one session.

/// Counts messages of a session from 1 and wraps around. Slots are reused every `window` (a power of two) numbers, so a
/// number and the one a whole turn of 2³² earlier are never in flight together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
#[repr(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// The first message's.
    pub const FIRST: Self = Self(1);

    /// The following number.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The number before it.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// The number `count` later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// How many numbers lie from `earlier` to this one.
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether this number comes before `other`, seen from within half a turn.
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

/// How far the numbers of calls are from those of their messages, by the last request of full form: requests of compact
/// form carry no number of their call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallBase(u64);

impl CallBase {
    /// The distance in this message.
    #[inline]
    pub const fn of(seq: Seq, call_id: u64) -> Self {
        Self(call_id.wrapping_sub(seq.0 as u64))
    }

    /// The number of the call in a message of compact form.
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
