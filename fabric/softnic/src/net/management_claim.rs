//! Which of the processes that share the port takes what comes for queue pair 1.
//!
//! The holder announces with each call that it still runs: it increments a shared *beat*. Another process takes queue
//! pair 1 over if the holder has exited, or if it is stopped: then the beat stays what it was while the other process
//! has called [`Claim::keep_or_take`] [`SILENT_CALLS`] times. It counts calls, not time: after a pause of its own it must
//! call as often as before. Each change of the holder increments the *epoch*. A process that is continued finds
//! another epoch, and takes nothing of what it had received.

use farcall_verbs::Result;

use super::slots::{SharedWord, Slots};

/// Number of calls after which a holder whose beat has not changed is taken for stopped: with a call every 50 ms, two
/// seconds, in which a holder that runs beats eight times.
const SILENT_CALLS: u32 = 40;

/// What this process knows of the holder of queue pair 1.
#[derive(Default)]
pub(super) struct Claim {
    /// The epoch in which this process is the holder.
    epoch: Option<u64>,
    /// The beat of another holder, its epoch, and how often they have been found unchanged.
    seen: (u64, u64),
    unchanged_calls: u32,
}

impl Claim {
    /// Announces that the holder runs, if that is this process. Otherwise takes queue pair 1, unless another process
    /// holds it that runs. Returns whether this process is the holder.
    ///
    /// # Errors
    /// See [`Slots::claim`].
    pub(super) fn keep_or_take(&mut self, slots: &Slots, block: u32) -> Result<bool> {
        if self.is_held(slots) {
            slots
                .set_word(SharedWord::ManagementBeat, slots.word(SharedWord::ManagementBeat).wrapping_add(1));
            return Ok(true);
        }
        self.epoch = None;
        let seen = (slots.word(SharedWord::ManagementEpoch), slots.word(SharedWord::ManagementBeat));
        self.unchanged_calls = if self.seen == seen { self.unchanged_calls + 1 } else { 0 };
        self.seen = seen;
        let is_silent = self.unchanged_calls >= SILENT_CALLS;
        // Nobody else was faster if the epoch is still the one that was seen.
        let may_take = || is_silent && slots.word(SharedWord::ManagementEpoch) == seen.0;
        if !slots.claim(block, is_silent, may_take, || self.epoch = Some(begin_epoch(slots)))? {
            return Ok(false);
        }
        self.unchanged_calls = 0;
        Ok(true)
    }

    /// Returns whether this process is the holder now: it was, and no other process has become it.
    pub(super) fn is_held(&self, slots: &Slots) -> bool {
        self.epoch.is_some_and(|epoch| slots.word(SharedWord::ManagementEpoch) == epoch)
    }
}

/// Begins an epoch. Called in the turn to change the table.
fn begin_epoch(slots: &Slots) -> u64 {
    let epoch = slots.word(SharedWord::ManagementEpoch).wrapping_add(1);
    slots.set_word(SharedWord::ManagementEpoch, epoch);
    slots.set_word(SharedWord::ManagementBeat, slots.word(SharedWord::ManagementBeat).wrapping_add(1));
    epoch
}
