//! Election of the process that receives the datagrams for queue pair 1, among those that share the port.
//!
//! The holder announces with each call that it still runs: it increments a shared *beat*. Another process takes queue
//! pair 1 over if the holder has exited, or if it is stopped: then the beat stays what it was while the other process
//! has called [`Claim::keep_or_claim`] [`SILENT_CALLS`] times. It counts calls and not time, so that a pause of its own
//! is not taken for silence of the holder. Each change of the holder increments the *epoch*. A stopped holder that is
//! continued finds another epoch: it discards the datagrams that it had received, and neither forwards nor replies to
//! one that it was handling.

use farcall_verbs::Result;

use super::shared_port::{SharedPort, SharedWord};

/// Number of calls after which a holder whose beat has not changed is assumed to be stopped. With a call every 50 ms
/// this is two seconds, in which a running holder beats eight times.
const SILENT_CALLS: u32 = 40;

/// Knowledge of this process about the holder of queue pair 1.
#[derive(Clone, Copy, Default)]
pub(super) struct Claim {
    /// Epoch in which this process is the holder.
    epoch: Option<u64>,
    /// Epoch and beat of another holder, and the number of calls that found them unchanged.
    last_seen: (u64, u64),
    unchanged_calls: u32,
}

impl Claim {
    /// Increments the beat if this process is the holder. Otherwise claims queue pair 1, unless another running process
    /// holds it. Returns whether this process is the holder.
    ///
    /// # Errors
    /// See [`SharedPort::claim`].
    pub(super) fn keep_or_claim(&mut self, shared_port: &SharedPort, block: u32) -> Result<bool> {
        if self.is_held(shared_port) {
            shared_port.set_word(
                SharedWord::ManagementBeat,
                shared_port.word(SharedWord::ManagementBeat).wrapping_add(1),
            );
            return Ok(true);
        }
        self.epoch = None;
        let seen =
            (shared_port.word(SharedWord::ManagementEpoch), shared_port.word(SharedWord::ManagementBeat));
        self.unchanged_calls = if self.last_seen == seen { self.unchanged_calls + 1 } else { 0 };
        self.last_seen = seen;
        let is_silent = self.unchanged_calls >= SILENT_CALLS;
        // No other process has claimed it in the meantime if the epoch is still the one seen above.
        let may_claim = || is_silent && shared_port.word(SharedWord::ManagementEpoch) == seen.0;
        if !shared_port.claim(block, is_silent, may_claim, || self.epoch = Some(start_epoch(shared_port)))? {
            return Ok(false);
        }
        self.unchanged_calls = 0;
        Ok(true)
    }

    /// Returns whether this process is still the holder.
    pub(super) fn is_held(&self, shared_port: &SharedPort) -> bool {
        self.epoch.is_some_and(|epoch| shared_port.word(SharedWord::ManagementEpoch) == epoch)
    }
}

/// Begins an epoch. The caller holds the lock of the table.
fn start_epoch(shared_port: &SharedPort) -> u64 {
    let epoch = shared_port.word(SharedWord::ManagementEpoch).wrapping_add(1);
    shared_port.set_word(SharedWord::ManagementEpoch, epoch);
    shared_port
        .set_word(SharedWord::ManagementBeat, shared_port.word(SharedWord::ManagementBeat).wrapping_add(1));
    epoch
}
