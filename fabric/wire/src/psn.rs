//! Packet sequence numbers.

/// A packet sequence number: 24 bits, compared by serial arithmetic (IBA volume 1, section 9.7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

const MASK: u32 = 0x00ff_ffff;

impl Psn {
    /// Creates the number modulo 2^24.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Returns the number as contained in the BTH.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number `packets` later.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the number before this one.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Returns how many packets `self` is after `other`. More than half of the number space means that it is before.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & MASK
    }

    /// Returns whether `self` is before `other`, by the shorter distance.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.0 != other.0 && self.distance_from(other) > MASK / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(2), Psn::new(1));
        assert_eq!(Psn::new(0).previous(), last);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert!(!last.is_before(last));
        assert_eq!(Psn::new(3).distance_from(last), 4);
    }
}
