//! A caller whose paths are no part of the type: one dynamic call for a batch of turns.

use std::ops::DerefMut;

use farcall_link::Nic;
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Next};

use super::ClientOptions;
use crate::caller::{CallId, CallOptions, Caller, CallerState};
use crate::error::{CallError, ConnectError};
use crate::paths::{Path, for_plan};

/// What of a caller depends on its paths. Sealed: [`Caller`] is the only one.
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
    fn turns(&mut self, turns: u32, now: Nanos) -> Next;

    /// See [`Caller::probe`].
    fn probe(&mut self, clock: &MonotonicClock);
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

    fn probe(&mut self, clock: &MonotonicClock) {
        Self::probe(self, clock);
    }
}

/// Makes the caller of a plan's paths.
pub(super) fn any_caller(nic: Nic, options: &ClientOptions) -> Result<Box<dyn AnyCaller>, ConnectError> {
    let config = options.config.clone();
    let preset = config.plan.preset()?;
    let made = for_plan!(preset.plan, |P| Caller::<P>::new(nic, config)
        .map(|caller| Box::new(caller) as Box<dyn AnyCaller>));
    made.unwrap_or_else(|| {
        Err(farcall_verbs::Error::invalid("connect", "the preset's paths are not built in"))
    })
    .map_err(ConnectError::from)
}
