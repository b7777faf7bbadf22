//! Which repeated requests are acknowledged, and how often. An acknowledgement shows to an attacker that can count
//! packets that a guessed sequence number was near the expected one.

use crate::TokenBucket;

/// Maximum number of sequence numbers behind the expected one that a peer sends again: more than any peer has
/// unacknowledged, and few enough of 2^24.
const BEHIND_MAX: u32 = 1 << 15;
/// Maximum number of acknowledgements of repeated requests at once.
const AT_ONCE_MAX: u32 = 64;
/// Interval after which one more is sent.
const INTERVAL_NS: u64 = 100_000;

/// The repeated requests of one queue pair.
pub(super) struct Repeats {
    /// Sequence numbers that were accepted, up to [`BEHIND_MAX`]: no others come again.
    accepted: u32,
    acknowledgements: TokenBucket<AT_ONCE_MAX, INTERVAL_NS>,
}

impl Default for Repeats {
    fn default() -> Self {
        Self { accepted: 0, acknowledgements: TokenBucket::full(0) }
    }
}

impl Repeats {
    /// Records that `packets` further sequence numbers were accepted.
    pub(super) fn accept(&mut self, packets: u32) {
        self.accepted = (self.accepted + packets).min(BEHIND_MAX);
    }

    /// Returns whether the peer may have sent the number that is `behind` the expected one by this many.
    pub(super) const fn is_possible(&self, behind: u32) -> bool {
        behind <= self.accepted
    }

    /// Takes an acknowledgement from the allowance. Returns whether one was left.
    pub(super) fn take(&mut self, now_ns: u64) -> bool {
        self.acknowledgements.take(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_only_numbers_that_were_accepted_lately() {
        let mut repeats = Repeats::default();
        assert!(!repeats.is_possible(1), "nothing has come yet");
        repeats.accept(3);
        assert!(repeats.is_possible(3) && !repeats.is_possible(4));
        repeats.accept(1 << 23);
        assert!(repeats.is_possible(BEHIND_MAX) && !repeats.is_possible(BEHIND_MAX + 1));
    }
}
