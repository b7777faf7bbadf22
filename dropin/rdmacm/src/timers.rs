//! Timers of the connection manager's thread.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::token::Token;

/// Timers in the order of their expiry.
pub struct Timers {
    due: BTreeSet<(Instant, Token)>,
    /// Wakes the thread.
    wake: Arc<OwnedFd>,
}

impl Timers {
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self { due: BTreeSet::new(), wake }
    }

    /// Sets a timer, and makes the thread check the timers.
    pub fn add(&mut self, deadline: Instant, token: Token) {
        self.due.insert((deadline, token));
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    pub fn cancel(&mut self, deadline: Instant, token: Token) {
        self.due.remove(&(deadline, token));
    }

    /// Returns when the next timer expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns a timer that has expired.
    pub fn pop_expired(&mut self, now: Instant) -> Option<Token> {
        let (deadline, token) = self.due.first().copied().filter(|(due, _)| *due <= now)?;
        self.due.remove(&(deadline, token));
        Some(token)
    }
}
