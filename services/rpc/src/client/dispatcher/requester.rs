//! A thread's end of a dispatcher.

use std::sync::Arc;
use std::time::Duration;

use farcall_drive::{IdlePolicy, Parker, sleep_on};
use farcall_shm::fork::Generation;
use farcall_verbs::{Clock, MonotonicClock};

use super::mailbox::{Outcome, Request, RequesterEnd};
use crate::caller::{CallContext, CallId, Completion};
use crate::client::NothingOutstanding;
use crate::error::{Broken, CallError, UnknownBecause};

/// Makes calls through a [`Dispatcher`](super::Dispatcher). Each thread that makes calls has its own.
pub struct Requester {
    pub(super) end: RequesterEnd,
    pub(super) dispatcher: Arc<Parker>,
    pub(super) clock: MonotonicClock,
    pub(super) call_timeout: Option<Duration>,
    pub(super) idle_policy: IdlePolicy,
    pub(super) made_in: Generation,
    pub(super) connections: u16,
    /// Memory of completed calls.
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) pending: Vec<CallId>,
    pub(super) last_call: u64,
    pub(super) lent: Vec<u8>,
}

farcall_verbs::opaque_debug!(Requester { pending });

impl Requester {
    /// Makes a call over a connection, given by its index in the list that the dispatcher was started with, and waits.
    /// The result is appended to `reply`. The deadline is the options' `call_timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`crate::Client::call`].
    ///
    /// # Panics
    /// Panics if there is no such connection, or calls of this requester are outstanding.
    pub fn call(
        &mut self,
        to: u16,
        method: u16,
        request: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), CallError> {
        assert!(self.pending.is_empty(), "submitted calls are outstanding: wait for them");
        self.submit(to, method, request)?;
        let done = self.wait().map_err(|NothingOutstanding| CallError::NotSent(Broken::Closed))?;
        done.result.map(|result| reply.extend_from_slice(result))
    }

    /// Begins a call without waiting for it.
    ///
    /// # Errors
    /// Returns an error if the window is full of outstanding calls, or the dispatcher has ended.
    ///
    /// # Panics
    /// Panics if there is no such connection.
    pub fn submit(&mut self, to: u16, method: u16, request: &[u8]) -> Result<CallId, CallError> {
        assert!(to < self.connections, "connection {to} of {}", self.connections);
        if self.made_in.is_inherited() {
            return Err(CallError::NotSent(Broken::Forked));
        }
        let Some(mut bytes) = self.spare.pop() else {
            return Err(CallError::WindowFull { window: self.end.requests.buffer().capacity() });
        };
        bytes.clear();
        bytes.extend_from_slice(request);
        self.last_call += 1;
        let call = CallId(self.last_call);
        let deadline = self.call_timeout.map(|timeout| self.clock.now() + timeout);
        let context = CallContext { deadline, trace_id: 0 };
        let request = Request { call, to, method, context, bytes };
        if self.end.requests.is_abandoned() || self.end.requests.push(request).is_err() {
            self.spare.push(Vec::new());
            return Err(CallError::NotSent(Broken::Closed));
        }
        self.pending.push(call);
        self.dispatcher.unpark_if_parked();
        Ok(call)
    }

    /// Returns the next completed call, if there is one.
    pub fn poll(&mut self) -> Option<Completion<'_>> {
        let Outcome { call, error, bytes } = self.end.outcomes.pop().ok().or_else(|| self.lost_outcome())?;
        self.pending.retain(|pending| *pending != call);
        self.spare.push(std::mem::replace(&mut self.lent, bytes));
        let result = match error {
            None => Ok(&self.lent[..]),
            Some(error) => Err(error),
        };
        Some(Completion { call, result })
    }

    /// Waits for the next submitted call to complete.
    ///
    /// # Errors
    /// Returns an error if no call is outstanding.
    pub fn wait(&mut self) -> Result<Completion<'_>, NothingOutstanding> {
        if self.pending.is_empty() {
            return Err(NothingOutstanding);
        }
        while self.end.outcomes.is_empty() && !self.is_lost() {
            if self.idle_policy.was_idle(1) {
                self.sleep();
            } else {
                std::hint::spin_loop();
            }
        }
        self.idle_policy.worked();
        self.poll().ok_or(NothingOutstanding)
    }

    /// Returns how many calls may be submitted now.
    pub fn available(&self) -> usize {
        self.spare.len()
    }

    /// Returns the number of submitted calls without an outcome.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    #[cold]
    fn sleep(&mut self) {
        let sleeper = &self.end.sleeper;
        sleeper.arm();
        if self.end.outcomes.is_empty() && !self.is_lost() {
            // If the system cannot sleep on descriptors, the requester polls; only processor time is lost.
            let _ = sleep_on(&[sleeper.fd()], None);
        }
        sleeper.disarm();
        self.idle_policy.woke();
    }

    /// Returns whether the dispatcher has ended, or belongs to the parent process.
    fn is_lost(&self) -> bool {
        self.end.outcomes.is_abandoned() || self.made_in.is_inherited()
    }

    /// Returns the outcome of a call that the dispatcher will not complete.
    fn lost_outcome(&mut self) -> Option<Outcome> {
        // Outcomes delivered before the dispatcher ended are still in the ring.
        if !self.is_lost() || !self.end.outcomes.is_empty() {
            return None;
        }
        let call = *self.pending.first()?;
        let why = if self.made_in.is_inherited() { Broken::Forked } else { Broken::Closed };
        let error = Some(CallError::OutcomeUnknown(UnknownBecause::Disconnected(why)));
        Some(Outcome { call, error, bytes: Vec::new() })
    }
}
