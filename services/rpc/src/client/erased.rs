//! A caller whose paths are no part of the type: one dynamic call for a batch of turns.

use std::ops::DerefMut;

use farcall_link::{Batching, Nic};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next};

use crate::caller::{BatchCaller, CallId, CallOptions, Caller, CallerState, Completion};
use crate::config::CallerConfig;
use crate::error::{CallError, ConnectError};
use crate::paths::{Path, for_plan};

/// What of a caller depends on its paths and on whether it sends batches. Sealed: [`Caller`] and [`BatchCaller`] are all.
pub trait AnyCaller: Endpoint + DerefMut<Target = CallerState> + Send {
    /// See [`Caller::submit`].
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError>;

    /// Up to `turns` turns, until a call ends.
    #[inline]
    fn turns(&mut self, turns: u32, now: Nanos) -> Next {
        let mut next = self.progress(now);
        for _ in 1..turns {
            if self.has_completion() {
                break;
            }
            std::hint::spin_loop();
            next = self.progress(now);
        }
        next
    }

    /// See [`Caller::probe`].
    fn probe(&mut self, clock: &MonotonicClock);

    /// See [`BatchCaller::flush`].
    fn flush(&mut self, now: Nanos);

    /// See [`CallerState::next_completion`].
    fn next_completion(&mut self) -> Option<Completion<'_>>;

    /// See [`CallerState::has_completion`].
    fn has_completion(&self) -> bool;

    /// See [`CallerState::available`].
    fn available(&self) -> usize;

    /// See [`CallerState::pending`].
    fn pending(&self) -> usize;

    /// See [`CallerState::cancel`].
    fn cancel(&mut self, call: CallId) -> bool;
}

impl<P: Path> AnyCaller for Caller<P> {
    #[inline]
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        Self::submit(self, method, payload, options, now)
    }

    fn probe(&mut self, clock: &MonotonicClock) {
        Self::probe(self, clock);
    }

    #[inline]
    fn flush(&mut self, _now: Nanos) {}

    #[inline]
    fn next_completion(&mut self) -> Option<Completion<'_>> {
        CallerState::next_completion(self)
    }

    #[inline]
    fn has_completion(&self) -> bool {
        CallerState::has_completion(self)
    }

    fn available(&self) -> usize {
        CallerState::available(self)
    }

    fn pending(&self) -> usize {
        CallerState::pending(self)
    }

    fn cancel(&mut self, call: CallId) -> bool {
        CallerState::cancel(self, call)
    }
}

impl<P: Path> AnyCaller for BatchCaller<P> {
    #[inline]
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        options: CallOptions,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        Self::submit(self, method, payload, options, now)
    }

    fn probe(&mut self, clock: &MonotonicClock) {
        Self::probe(self, clock);
    }

    #[inline]
    fn flush(&mut self, now: Nanos) {
        Self::flush(self, now);
    }

    #[inline]
    fn next_completion(&mut self) -> Option<Completion<'_>> {
        Self::next_completion(self)
    }

    #[inline]
    fn has_completion(&self) -> bool {
        Self::has_completion(self)
    }

    fn available(&self) -> usize {
        Self::available(self)
    }

    fn pending(&self) -> usize {
        Self::pending(self)
    }

    fn cancel(&mut self, call: CallId) -> bool {
        Self::cancel(self, call)
    }
}

/// Makes the caller of the paths of `config`'s plan, which sends batches if the plan does.
///
/// # Errors
/// When the plan is no variant of a preset, or the RNIC refuses.
pub fn any_caller(nic: Nic, config: CallerConfig) -> Result<Box<dyn AnyCaller>, ConnectError> {
    let preset = config.plan.preset()?;
    let made = for_plan!(preset.plan, |P| match config.plan.batching {
        Batching::Calls(_) => {
            BatchCaller::<P>::new(nic, config).map(|caller| Box::new(caller) as Box<dyn AnyCaller>)
        }
        _ => Caller::<P>::new(nic, config).map(|caller| Box::new(caller) as Box<dyn AnyCaller>),
    });
    made.unwrap_or_else(|| {
        Err(farcall_verbs::Error::invalid("connect", "the preset's paths are not built in"))
    })
    .map_err(ConnectError::from)
}
