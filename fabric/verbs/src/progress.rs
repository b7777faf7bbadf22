//! The sans-IO contract between endpoints and whoever runs them.
//!
//! A driver's rule: call [`Endpoint::progress`] until it is idle, call [`Endpoint::arm`], call `progress` once more,
//! and only if that is idle too, sleep on the wait set until `until`.

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::{Nanos, Result};

/// What an endpoint wants after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There may be more to do now.
    Again,
    /// Nothing to do before something of the wait set is ready or the time has come.
    Idle {
        /// When to call again at the latest.
        until: Option<Nanos>,
    },
}

impl Next {
    /// Idle without a deadline.
    pub const IDLE: Self = Self::Idle { until: None };

    /// What to do for two endpoints run by one driver.
    #[must_use]
    #[inline]
    pub fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::Again, _) | (_, Self::Again) => Self::Again,
            (Self::Idle { until: a }, Self::Idle { until: b }) => Self::Idle { until: Nanos::earlier(a, b) },
        }
    }
}

/// File descriptors whose readability means that an endpoint has something to do.
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

    /// The descriptors.
    pub fn fds(&self) -> &[RawFd] {
        &self.fds
    }

    /// Forgets all, keeps the memory.
    pub fn clear(&mut self) {
        self.fds.clear();
    }
}

/// What threads other than the owner's look at while the owner of an endpoint sleeps (RR-Compound, algorithm 2).
pub trait Probe: Send + Sync {
    /// Whether there may be something that the owner has not seen when it called [`Endpoint::arm_covered`]: a few
    /// loads, from any thread, at any time.
    fn has_news(&self) -> bool;
}

/// A protocol end point: owns no thread, no clock and no socket.
pub trait Endpoint {
    /// Does what can be done at `now` without waiting, in bounded time.
    fn progress(&mut self, now: Nanos) -> Next;

    /// Asks for a wake-up: from now on an event makes a descriptor of the wait set readable. Call `progress` once more
    /// before sleeping.
    ///
    /// # Errors
    /// If the provider cannot arm a completion queue; the driver then must not sleep.
    fn arm(&mut self) -> Result<()>;

    /// What a poller looks at; always the same. `None`: nothing tells other threads of news, only [`Endpoint::arm`]
    /// makes that they wake the owner.
    fn news_probe(&self) -> Option<Arc<dyn Probe>> {
        None
    }

    /// As [`Endpoint::arm`], for an owner whom somebody wakes when the probe has news: a wake-up is asked for only of
    /// what the probe does not show.
    ///
    /// # Errors
    /// As [`Endpoint::arm`].
    fn arm_covered(&mut self) -> Result<()> {
        self.arm()
    }

    /// What to sleep on.
    fn wait_set(&self, set: &mut WaitSet);

    /// Whether what it waits for takes long: an owner that shares its thread with others then sleeps at once, whatever
    /// else it would poll on for.
    fn waits_long(&self) -> bool {
        false
    }

    /// For how many looks an idle turn counts, where those before a sleep are counted: who looks at very many places in
    /// a turn does not poll on for longer than others.
    fn looks(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_takes_the_earlier() {
        let at = |ns| Next::Idle { until: Some(Nanos(ns)) };
        assert_eq!(at(3).merge(at(2)), at(2));
        assert_eq!(Next::IDLE.merge(at(2)), at(2));
        assert_eq!(Next::IDLE.merge(Next::Again), Next::Again);
    }
}
