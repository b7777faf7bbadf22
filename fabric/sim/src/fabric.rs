//! The state shared by all handles, behind a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::params::Params;
use crate::state::State;

/// The state and its lock. A world runs on one thread at a time; the lock exists because verbs objects may be sent to
/// other threads.
pub(crate) struct Fabric(Mutex<State>);

impl Fabric {
    pub(crate) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    /// Locks the state for the world itself, without cost in virtual time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a simulated program ends its test; calls of other handles while they are dropped may still
        // succeed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for an infrequent call of a program.
    pub(crate) fn call(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.call_ns)
    }

    /// Locks the state for a doorbell.
    pub(crate) fn post(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.post_ns)
    }

    /// Locks the state for a poll of a queue.
    pub(crate) fn poll(&self) -> MutexGuard<'_, State> {
        self.charged(|params| params.poll_ns)
    }

    fn charged(&self, cost_ns: fn(&Params) -> u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let ns = cost_ns(&state.devices.params);
        state.devices.scheduler.time.charge(ns);
        state
    }
}
