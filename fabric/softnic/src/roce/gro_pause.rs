//! Pauses of batched reception (GRO). The kernel delivers a batch to one process of the port. A network may combine
//! datagrams for several processes into one batch, and all processes but one then lose theirs. The processes of the
//! port therefore turn GRO off for a while. Only a batch from a known peer causes this, so no other sender can slow the
//! processes down.

use rustix::time::{ClockId, clock_gettime};

use super::shared_port::{SharedPort, SharedWord};

/// Duration of the first pause, and of the longest.
const FIRST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 64 * FIRST_NS;
/// A pause that begins within this time after the previous one is twice as long.
const SOON_NS: u64 = 60 * FIRST_NS;
/// Interval between checks whether a pause has ended. Any process of the port ends it: the one that began it may have
/// exited.
const CHECK_EVERY_NS: u64 = FIRST_NS;

/// The pauses that this process begins and ends.
#[derive(Default)]
pub(super) struct GroPauses {
    checked_ns: u64,
    /// Duration and end of the last pause that this process began.
    last_ns: u64,
    ended_ns: u64,
}

/// Returns a time that is common to all processes of the port; never 0.
fn shared_now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

impl GroPauses {
    /// Returns for how long a pause lasts that begins now.
    fn next_ns(&mut self, now_ns: u64) -> u64 {
        let is_soon = self.last_ns > 0 && now_ns < self.ended_ns + SOON_NS;
        self.last_ns = if is_soon { (2 * self.last_ns).min(LONGEST_NS) } else { FIRST_NS };
        self.ended_ns = now_ns + self.last_ns;
        self.last_ns
    }

    /// Begins a pause. Returns `false` if one is in progress.
    pub(super) fn begin(&mut self, shared_port: &SharedPort) -> bool {
        if shared_port.word(SharedWord::GroPausedUntil) != 0 {
            return false;
        }
        let now_ns = shared_now_ns();
        shared_port.set_word(SharedWord::GroPausedUntil, now_ns + self.next_ns(now_ns));
        shared_port.allow_gro(false);
        true
    }

    /// Ends a pause whose time has expired. Called with each batch of packets; checks once per [`CHECK_EVERY_NS`].
    pub(super) fn end_if_due(&mut self, shared_port: &SharedPort, now_ns: u64) {
        if now_ns.saturating_sub(self.checked_ns) < CHECK_EVERY_NS {
            return;
        }
        self.checked_ns = now_ns;
        let (until_ns, shared_now_ns) = (shared_port.word(SharedWord::GroPausedUntil), shared_now_ns());
        // Another process of the user wrote it. Regardless of its value, no pause lasts longer than the longest.
        if until_ns != 0 && !(shared_now_ns..shared_now_ns + LONGEST_NS).contains(&until_ns) {
            shared_port.allow_gro(true);
            shared_port.set_word(SharedWord::GroPausedUntil, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengthens_pauses_that_follow_each_other() {
        let mut pauses = GroPauses::default();
        let mut now_ns = 1;
        for factor in [1, 2, 4, 8, 16, 32, 64, 64] {
            let pause_ns = pauses.next_ns(now_ns);
            assert_eq!(pause_ns, factor * FIRST_NS);
            now_ns += pause_ns + 1;
        }
        assert_eq!(pauses.next_ns(now_ns + SOON_NS), FIRST_NS, "after a while as at first");
    }
}
