//! A caller without its type: one dynamic call for many turns.

use farcall_link::bootstrap::{Hello, Welcome};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next};

use crate::caller::{CallId, CallOptions, Caller, Completion, Path};
use crate::counters::Counters;
use crate::error::{Broken, CallError, ConnectError};

/// What a client needs of a caller, whatever its response path. Nobody else implements or calls it.
#[doc(hidden)]
pub trait Core: Endpoint + Send {
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError>;
    fn next_completion(&mut self) -> Option<Completion<'_>>;
    fn has_completion(&self) -> bool;
    /// Up to `turns` turns, until a call ends.
    fn turns(&mut self, turns: u32, now: Nanos) -> Next;
    fn cancel(&mut self, call: CallId) -> bool;
    fn hello(&mut self) -> Result<Hello, ConnectError>;
    fn welcome(&mut self, welcome: Welcome, now: Nanos) -> Result<(), ConnectError>;
    fn probe(&mut self, clock: &MonotonicClock);
    fn break_off(&mut self, why: Broken);
    fn fail_all(&mut self, why: &Broken);
    fn set_going_away(&mut self);
    fn is_open(&self) -> bool;
    fn broken(&self) -> Option<&Broken>;
    fn pending(&self) -> usize;
    fn available(&self) -> usize;
    fn earliest_deadline(&self) -> Option<Nanos>;
    fn counters(&self) -> &Counters;
    fn tuning(&self) -> (u32, u32);
    fn last_welcome(&self) -> Option<&Welcome>;
}

impl<P: Path> Core for Caller<P> {
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        Self::submit(self, method, payload, options, now)
    }

    fn next_completion(&mut self) -> Option<Completion<'_>> {
        Self::next_completion(self)
    }

    fn has_completion(&self) -> bool {
        Self::has_completion(self)
    }

    fn turns(&mut self, turns: u32, now: Nanos) -> Next {
        let mut next = self.progress(now);
        for _ in 1..turns {
            if Self::has_completion(self) {
                break;
            }
            std::hint::spin_loop();
            next = self.progress(now);
        }
        next
    }

    fn cancel(&mut self, call: CallId) -> bool {
        Self::cancel(self, call)
    }

    fn hello(&mut self) -> Result<Hello, ConnectError> {
        Self::hello(self)
    }

    fn welcome(&mut self, welcome: Welcome, now: Nanos) -> Result<(), ConnectError> {
        Self::welcome(self, welcome, now)
    }

    fn probe(&mut self, clock: &MonotonicClock) {
        Self::probe(self, clock, crate::tune::LinkProfile::PATIENCE);
    }

    fn break_off(&mut self, why: Broken) {
        Self::break_off(self, why);
    }

    fn fail_all(&mut self, why: &Broken) {
        Self::fail_all(self, why);
    }

    fn set_going_away(&mut self) {
        Self::set_going_away(self);
    }

    fn is_open(&self) -> bool {
        Self::is_open(self)
    }

    fn broken(&self) -> Option<&Broken> {
        Self::broken(self)
    }

    fn pending(&self) -> usize {
        Self::pending(self)
    }

    fn available(&self) -> usize {
        Self::available(self)
    }

    fn earliest_deadline(&self) -> Option<Nanos> {
        Self::earliest_deadline(self)
    }

    fn counters(&self) -> &Counters {
        Self::counters(self)
    }

    fn tuning(&self) -> (u32, u32) {
        Self::tuning(self)
    }

    fn last_welcome(&self) -> Option<&Welcome> {
        Self::last_welcome(self)
    }
}
