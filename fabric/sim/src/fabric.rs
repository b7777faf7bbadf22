//! What all handles share: the state of the world under a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::params::Params;
use crate::state::State;

/// The state behind its lock. A world runs on one thread at a time; the lock is there because verbs objects may be sent
/// to other threads.
pub(crate) struct Fabric(Mutex<State>);

impl Fabric {
    pub(crate) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    /// The state, for the world itself: costs nobody anything.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a simulated program ends its test; what other handles do while they are dropped may still work.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a rare call of a program.
    pub(crate) fn call(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.call_ns)
    }

    /// The state, for a doorbell.
    pub(crate) fn post(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.post_ns)
    }

    /// The state, for a look at a queue.
    pub(crate) fn poll(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.poll_ns)
    }

    fn charged(&self, cost_ns: fn(&Params) -> u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let ns = cost_ns(&state.params);
        state.charge(ns);
        state
    }
}
