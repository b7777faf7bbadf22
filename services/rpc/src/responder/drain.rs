//! Going away gracefully: finish what came, refuse what comes, then close.

use farcall_link::Geometry;
use farcall_link::bootstrap::RefusalKind;
use farcall_verbs::{Clock, Nanos, Next};

use super::{Handler, Responder};
use crate::error::Broken;

/// Where a responder is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Executes what comes.
    Serving,
    /// Was told to stop; executes what had come by then, for so many more turns under load or until a turn finds
    /// nothing.
    Finishing {
        /// Turns left.
        turns: u32,
    },
    /// Answers what comes with "going away", without executing it, until the time has come.
    Refusing {
        /// When to close, or to look again whether clients wait for answers that come later.
        until: Nanos,
        /// When to close whoever waits.
        latest: Nanos,
        /// Whether clients waited at the last look: they may not have fetched yet what they collected since.
        owed: bool,
    },
    /// All connections are closed.
    Drained,
}

impl<H: Handler, C: Clock> Responder<H, C> {
    /// Starts a graceful end: no new connections, what came is finished, what comes is answered with "going away"
    /// (never executed), then everything is closed. [`Responder::is_drained`] tells when.
    pub fn drain(&mut self) {
        if self.phase == Phase::Serving {
            // So many turns take in a full window of every connection.
            let turns = u32::from(Geometry::WINDOW_MAX).div_ceil(self.engine.config.burst.max(1));
            self.phase = Phase::Finishing { turns };
        }
    }

    /// Whether a drain has ended.
    pub fn is_drained(&self) -> bool {
        self.phase == Phase::Drained
    }

    /// Called after a turn; `any` is whether it found something.
    pub(super) fn progress_drain(&mut self, any: bool, now: Nanos) -> Next {
        match self.phase {
            Phase::Serving | Phase::Drained => Next::IDLE,
            Phase::Finishing { turns } if any && turns > 0 => {
                self.phase = Phase::Finishing { turns: turns - 1 };
                Next::Again
            }
            Phase::Finishing { .. } => {
                // Everything that had come is finished.
                let until = now + self.engine.config.drain_grace;
                let latest = until + self.engine.config.deferred_grace;
                self.phase = Phase::Refusing { until, latest, owed: false };
                self.engine.going_away = true;
                Next::Idle { until: Some(until) }
            }
            Phase::Refusing { until, .. } if now < until => Next::Idle { until: Some(until) },
            Phase::Refusing { latest, owed, .. } if now < latest && (owed || self.owes_answers()) => {
                let until = now + self.engine.config.drain_grace;
                self.phase = Phase::Refusing { until, latest, owed: self.owes_answers() };
                Next::Idle { until: Some(until) }
            }
            Phase::Refusing { .. } => {
                self.phase = Phase::Drained;
                while !self.connections.is_empty() {
                    let tell = RefusalKind::GoingAway.because("the server has drained");
                    self.end(0, Broken::Closed, Some(tell), None);
                }
                self.parked.clear();
                Next::IDLE
            }
        }
    }
}
