//! How many packets may be unacknowledged: more while all arrive, fewer when some do not. The end-to-end credits of the
//! specification (IBA 9.7.7.2) count messages; a socket that overruns loses packets.

/// How much of a window must be in use for its acknowledgements to say anything: half of it.
const IN_USE: u32 = 2;

/// A window of packets, of at least so many and at most so many.
pub(super) struct Window {
    min: u32,
    max: u32,
    limit: u32,
    /// Acknowledged since it grew.
    credit: u32,
    /// From then on it grows slowly.
    has_lost: bool,
}

impl Window {
    pub(super) fn new(min: u32, max: u32) -> Self {
        Self { min, max: max.max(min), limit: min, credit: 0, has_lost: false }
    }

    /// As for a pair that is connected anew.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.min, self.max);
    }

    pub(super) const fn is_full(&self, ahead: u32) -> bool {
        ahead >= self.limit
    }

    /// So many packets were acknowledged when so many were on their way: before the first loss it doubles in a round
    /// trip, after that it grows by one.
    pub(super) fn acknowledged(&mut self, packets: u32, ahead: u32) {
        if ahead * IN_USE < self.limit {
            return;
        }
        self.credit += packets;
        let grown = if self.has_lost { self.credit / self.limit } else { self.credit };
        self.credit -= if self.has_lost { grown * self.limit } else { grown };
        self.limit = (self.limit + grown).min(self.max);
    }

    /// Packets are sent again.
    pub(super) fn lost(&mut self) {
        self.limit = (self.limit / 2).max(self.min);
        (self.credit, self.has_lost) = (0, true);
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn it_doubles_until_the_first_loss_then_grows_by_one_and_keeps_its_bounds() {
        let mut window = Window::new(8, 40);
        window.acknowledged(3, 3);
        assert!(window.is_full(8) && !window.is_full(7), "little in use says nothing");
        window.acknowledged(8, 8);
        assert!(window.is_full(16) && !window.is_full(15));
        window.acknowledged(1_000, 16);
        assert!(window.is_full(40) && !window.is_full(39));
        window.lost();
        assert!(window.is_full(20) && !window.is_full(19));
        for _ in 0..2 {
            window.acknowledged(19, 20);
        }
        assert!(window.is_full(21) && !window.is_full(20));
        for _ in 0..5 {
            window.lost();
        }
        assert!(window.is_full(8) && !window.is_full(7));
        window.forget();
        window.acknowledged(8, 8);
        assert!(!window.is_full(15), "connected anew it knows of no loss");
    }
}
