//! Messages in flight to a target whose receives are shared; see [`super::shared_target`].

/// Number of empty polls after which, and after each multiple of which, a sender matches the receives of a target in
/// its own process. This is longer than another thread that polls the target takes, and shorter than a wake-up.
const POLLS_BEFORE_MATCHING: u32 = 64;

/// Maximum number of times that the number of polls is halved, once per message that no other thread matched. A thread
/// that owns both queue pairs would otherwise poll 64 times for each message.
const THRESHOLD_SHIFT_MAX: u32 = 5;

/// Messages in flight to a target with shared receives.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Number of messages at the front of the wait queue that were published and not accepted yet.
    pub(crate) count: usize,
    /// Number of messages that the target has accepted.
    pub(super) accepted: u64,
    /// `true` if the request at the front has requested a receive.
    pub(super) offer_requested: bool,
    /// Number of polls that found the oldest message not accepted.
    pub(super) polls: u32,
    /// `true` if the target is a queue pair of this process and this thread must match its receives.
    pub(super) must_match: bool,
    /// `true` if this thread had to match since the last message was accepted.
    pub(super) has_matched: bool,
    /// Number of consecutive messages accepted only after this thread matched, up to [`THRESHOLD_SHIFT_MAX`].
    threshold_shift: u32,
}

impl InFlight {
    /// Records that the target has accepted the oldest message.
    pub(super) fn accept(&mut self) {
        self.accepted += 1;
        self.count -= 1;
        let (polls, has_matched) = (std::mem::take(&mut self.polls), std::mem::take(&mut self.has_matched));
        if has_matched {
            self.threshold_shift = (self.threshold_shift + 1).min(THRESHOLD_SHIFT_MAX);
        } else if polls > 0 {
            // Another thread polls the target.
            self.threshold_shift = 0;
        }
    }

    /// Returns whether this thread must match after another poll without success.
    pub(super) fn is_match_due(&self) -> bool {
        let first = POLLS_BEFORE_MATCHING >> self.threshold_shift;
        self.polls == first || self.polls.is_multiple_of(POLLS_BEFORE_MATCHING)
    }
}
