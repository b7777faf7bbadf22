//! A caller whose paths are not part of its type: one dynamic call for several driver iterations.

use std::ops::DerefMut;

use farcall_link::{Batching, Nic};
use farcall_verbs::{Endpoint, MonotonicClock, Nanos, Progress};

use crate::caller::{BatchCaller, CallContext, CallId, Caller, CallerState, Completion};
use crate::config::CallerConfig;
use crate::error::{CallError, ConnectError};
use crate::paths::{Path, for_plan};

/// Operations of a caller that depend on its paths and on batching. Sealed: implemented only by [`Caller`] and
/// [`BatchCaller`].
pub trait AnyCaller: Endpoint + DerefMut<Target = CallerState> + Send {
    /// See [`Caller::submit`].
    fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        context: CallContext,
        now: Nanos,
    ) -> Result<CallId, CallError>;

    /// Makes up to `turns` driver iterations, until a call completes.
    #[inline]
    fn turns(&mut self, turns: u32, now: Nanos) -> Progress {
        iterate(self, turns, now, Self::has_completion)
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
        context: CallContext,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        Self::submit(self, method, payload, context, now)
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
        context: CallContext,
        now: Nanos,
    ) -> Result<CallId, CallError> {
        Self::submit(self, method, payload, context, now)
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

/// Creates the caller for the paths of `config`'s plan, which sends batches if the plan does.
///
/// # Errors
/// Returns an error if the plan is not a variant of a preset, or the RNIC cannot create the resources.
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

/// Makes up to `turns` driver iterations, until `is_done` returns `true`. Returns [`Progress::Again`] if any iteration
/// did: a caller that has armed the endpoint must arm it again before it sleeps, because that iteration may have sent a
/// message whose response is not requested to wake it.
#[inline]
fn iterate<E: Endpoint + ?Sized>(
    endpoint: &mut E,
    turns: u32,
    now: Nanos,
    is_done: impl Fn(&E) -> bool,
) -> Progress {
    let mut next = endpoint.progress(now);
    let mut has_worked = next == Progress::Again;
    for _ in 1..turns {
        if is_done(endpoint) {
            break;
        }
        std::hint::spin_loop();
        next = endpoint.progress(now);
        has_worked |= next == Progress::Again;
    }
    if has_worked { Progress::Again } else { next }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::{Result, WaitSet};

    use super::*;

    /// An endpoint that has work in one iteration.
    struct WorksOnce {
        iterations: u32,
        works_in: u32,
    }

    impl Endpoint for WorksOnce {
        fn progress(&mut self, _: Nanos) -> Progress {
            self.iterations += 1;
            if self.iterations == self.works_in { Progress::Again } else { Progress::IDLE }
        }

        fn arm(&mut self) -> Result<()> {
            Ok(())
        }

        fn wait_set(&self, _: &mut WaitSet) {}
    }

    #[test]
    fn reports_work_of_any_iteration() {
        let iterate = |works_in| {
            iterate(&mut WorksOnce { iterations: 0, works_in }, 4, Nanos(0), |endpoint| {
                endpoint.iterations == 3
            })
        };
        assert_eq!(
            [1, 2, 3, 4].map(iterate),
            [Progress::Again, Progress::Again, Progress::Again, Progress::IDLE]
        );
    }
}
