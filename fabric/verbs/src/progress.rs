//! The sans-IO contract between endpoints and their drivers.
//!
//! A driver calls [`Endpoint::progress`] until it is idle, then calls [`Endpoint::arm`], then `progress` once more.
//! Only if that call is idle too, the driver sleeps on the wait set until `until`.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::{Nanos, Result};

/// Result of a progress step: when the driver must call the endpoint again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more work now.
    Again,
    /// There is no work until a descriptor of the wait set is readable or `until` has passed.
    Idle {
        /// Latest time of the next call.
        until: Option<Nanos>,
    },
}

impl Progress {
    /// Idle without a deadline.
    pub const IDLE: Self = Self::Idle { until: None };

    /// Combines the results of two endpoints of one driver.
    #[must_use]
    #[inline]
    pub fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::Again, _) | (_, Self::Again) => Self::Again,
            (Self::Idle { until: a }, Self::Idle { until: b }) => Self::Idle { until: Nanos::earlier(a, b) },
        }
    }
}

/// File descriptors that become readable when an endpoint has work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitSet {
    fds: Vec<RawFd>,
}

impl WaitSet {
    /// Adds a descriptor once.
    pub fn insert(&mut self, fd: RawFd) {
        if !self.fds.contains(&fd) {
            self.fds.push(fd);
        }
    }

    /// Returns the descriptors.
    pub fn fds(&self) -> &[RawFd] {
        &self.fds
    }

    /// Removes all descriptors and keeps the allocation.
    pub fn clear(&mut self) {
        self.fds.clear();
    }
}

/// Wake-up condition of a sleeping endpoint, polled by threads other than its driver thread (RR-Compound, algorithm 2).
pub trait WakeProbe: Send + Sync {
    /// Returns whether there may be work that arrived after the driver thread called [`Endpoint::arm_delegated`]. Costs
    /// a few loads; may be called from any thread at any time.
    fn has_work(&self) -> bool;
}

/// A protocol endpoint: it has no thread, clock or socket of its own.
pub trait Endpoint {
    /// Does the work that is possible at `now` without blocking, in bounded time.
    fn progress(&mut self, now: Nanos) -> Progress;

    /// Requests a wake-up: from now on an event makes a descriptor of the wait set readable. Call `progress` once more
    /// before sleeping.
    ///
    /// # Errors
    /// Returns an error if the provider cannot arm a completion queue; the driver then must not sleep.
    fn arm(&mut self) -> Result<()>;

    /// Returns the probe that a poller checks; always the same one. `None`: the endpoint's work is not visible to other
    /// threads, so only [`Endpoint::arm`] provides wake-ups.
    fn wake_probe(&self) -> Option<Arc<dyn WakeProbe>> {
        None
    }

    /// Like [`Endpoint::arm`], for a driver thread that a poller wakes when the probe has work: requests wake-ups only
    /// for events that the probe does not cover.
    ///
    /// # Errors
    /// Returns the errors of [`Endpoint::arm`].
    fn arm_delegated(&mut self) -> Result<()> {
        self.arm()
    }

    /// Adds the descriptors to sleep on.
    fn wait_set(&self, set: &mut WaitSet);

    /// Returns whether the endpoint expects a long wait. A driver that shares its thread with others then sleeps at
    /// once instead of polling on.
    fn prefers_sleep(&self) -> bool {
        false
    }

    /// Returns the weight of an idle iteration in the count of polls before a sleep. An endpoint that polls very many
    /// locations per iteration thus does not poll for longer than others.
    fn poll_weight(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_takes_the_earlier() {
        let at = |ns| Progress::Idle { until: Some(Nanos(ns)) };
        assert_eq!(at(3).merge(at(2)), at(2));
        assert_eq!(Progress::IDLE.merge(at(2)), at(2));
        assert_eq!(Progress::IDLE.merge(Progress::Again), Progress::Again);
    }
}
