//! Graceful shutdown: finish the received messages, refuse later ones, then close.

use farcall_link::Geometry;
use farcall_link::bootstrap::RefusalKind;
use farcall_verbs::{Clock, Nanos, Progress};

use super::{Handler, Responder};
use crate::error::Broken;

/// Lifecycle phase of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Executes received messages.
    Serving,
    /// Was requested to stop. Executes the messages received until then, until an iteration finds nothing or the
    /// number of iterations is used up.
    Finishing {
        /// Remaining iterations.
        turns: u32,
    },
    /// Replies to messages with "going away" without executing them, until a point in time.
    Rejecting {
        /// When to close, or to check again whether clients wait for deferred answers.
        until: Nanos,
        /// When to close even if clients wait.
        latest: Nanos,
        /// `true` if clients waited at the last check: they may not have fetched yet what they have collected since.
        clients_waited: bool,
    },
    /// All connections are closed.
    Drained,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Starts a graceful shutdown: accepts no new connections, finishes the messages received so far, replies to later
    /// ones with "going away" (without executing them), then closes everything. [`Responder::is_drained`] returns
    /// whether it has finished.
    pub fn drain(&mut self) {
        if self.phase == Phase::Serving {
            // This number of iterations handles a full window of every connection.
            let turns = u32::from(Geometry::WINDOW_MAX).div_ceil(self.engine.config.burst.max(1));
            self.phase = Phase::Finishing { turns };
        }
    }

    /// Returns whether a drain has finished.
    pub fn is_drained(&self) -> bool {
        self.phase == Phase::Drained
    }

    /// Continues a drain after an iteration; `any` is whether it found work.
    pub(super) fn progress_drain(&mut self, any: bool, now: Nanos) -> Progress {
        match self.phase {
            Phase::Serving | Phase::Drained => Progress::IDLE,
            Phase::Finishing { turns } if any && turns > 0 => {
                self.phase = Phase::Finishing { turns: turns - 1 };
                Progress::Again
            }
            Phase::Finishing { .. } => {
                // All messages received before the drain are finished.
                let until = now + self.engine.config.drain_grace;
                let latest = until + self.engine.config.deferred_grace;
                self.phase = Phase::Rejecting { until, latest, clients_waited: false };
                self.engine.draining = true;
                Progress::Idle { until: Some(until) }
            }
            Phase::Rejecting { until, .. } if now < until => Progress::Idle { until: Some(until) },
            Phase::Rejecting { latest, clients_waited, .. }
                if now < latest && (clients_waited || self.clients_wait()) =>
            {
                let until = now + self.engine.config.drain_grace;
                self.phase = Phase::Rejecting { until, latest, clients_waited: self.clients_wait() };
                Progress::Idle { until: Some(until) }
            }
            Phase::Rejecting { .. } => {
                self.phase = Phase::Drained;
                while !self.connections.is_empty() {
                    let refusal = RefusalKind::GoingAway.because("the server has drained");
                    self.end(0, Broken::Closed, Some(refusal), None);
                }
                self.detached.clear();
                Progress::IDLE
            }
        }
    }
}
