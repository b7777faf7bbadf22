//! Limit on unacknowledged packets: it grows while all packets arrive, and shrinks after losses. The end-to-end credits
//! of the specification (IBA 9.7.7.2) count messages, but a socket whose buffer overruns loses packets.

/// Reciprocal of the part of the window that must be in use for acknowledgements to let it grow.
const IN_USE: u32 = 2;

/// A window of packets between a minimum and a maximum.
pub(super) struct Window {
    min: u32,
    max: u32,
    limit: u32,
    /// Packets acknowledged since the window last grew.
    credit: u32,
    /// Whether packets were lost; the window then grows slowly.
    has_lost: bool,
}

impl Window {
    pub(super) fn new(min: u32, max: u32) -> Self {
        Self { min, max: max.max(min), limit: min, credit: 0, has_lost: false }
    }

    /// Resets the window, for a new connection.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.min, self.max);
    }

    pub(super) const fn is_full(&self, ahead: u32) -> bool {
        ahead >= self.limit
    }

    /// Records that `packets` were acknowledged while `ahead` were in flight. Before the first loss the window doubles
    /// per round trip; after it, it grows by one.
    pub(super) fn acknowledged(&mut self, packets: u32, ahead: u32) {
        if ahead * IN_USE < self.limit {
            return;
        }
        self.credit += packets;
        let grown = if self.has_lost { self.credit / self.limit } else { self.credit };
        self.credit -= if self.has_lost { grown * self.limit } else { grown };
        self.limit = (self.limit + grown).min(self.max);
    }

    /// Records a retransmission.
    pub(super) fn lost(&mut self) {
        self.limit = (self.limit / 2).max(self.min);
        (self.credit, self.has_lost) = (0, true);
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn doubles_the_window_until_the_first_loss_then_adds_one() {
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
        window.reset();
        window.acknowledged(8, 8);
        assert!(!window.is_full(15), "connected anew it knows of no loss");
    }
}
