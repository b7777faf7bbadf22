//! Limit on the acknowledgements of repeated requests. To an attacker that can count packets, an acknowledgement shows
//! that a guessed sequence number is close to the expected one.

use crate::TokenBucket;

/// Maximum distance before the expected sequence number at which a peer retransmits: more than the unacknowledged
/// packets of any peer, and a small part of 2^24.
const BEHIND_MAX: u32 = 1 << 15;
/// Maximum number of acknowledgements of repeated requests in a burst.
const BURST_MAX: u32 = 64;
/// Interval after which another acknowledgement is permitted.
const INTERVAL_NS: u64 = 100_000;

/// The repeated requests of one queue pair.
pub(super) struct Repeats {
    /// Number of accepted sequence numbers, up to [`BEHIND_MAX`]: only these can be repeated.
    accepted: u32,
    acknowledgements: TokenBucket<BURST_MAX, INTERVAL_NS>,
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

    /// Returns whether the peer may have sent the sequence number at distance `behind` before the expected one.
    pub(super) const fn is_possible(&self, behind: u32) -> bool {
        behind <= self.accepted
    }

    /// Consumes an acknowledgement of the allowance. Returns whether one was left.
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
