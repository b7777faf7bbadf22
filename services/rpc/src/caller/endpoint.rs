//! The client's [`Endpoint`].

use std::ops::{Deref, DerefMut};

use farcall_link::Nic;
use farcall_verbs::{Endpoint, Nanos, Notify, Progress, Result, WaitSet};

use super::{CallContext, CallId, CallerState};
use crate::config::CallerConfig;
use crate::error::CallError;
use crate::paths::{Path, ResponsePath};

/// Number of iterations between polls of the completion queue while no completion is expected.
const TURNS_PER_POLL: u32 = 16;

/// The client endpoint: one connection to one server thread, generic over the paths of its plan.
pub struct Caller<P: Path> {
    pub(super) state: CallerState,
    pub(super) path: P::Response,
}

impl<P: Path> Deref for Caller<P> {
    type Target = CallerState;

    #[inline]
    fn deref(&self) -> &CallerState {
        &self.state
    }
}

impl<P: Path> DerefMut for Caller<P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut CallerState {
        &mut self.state
    }
}

impl<P: Path> Caller<P> {
    /// Creates a client endpoint on a device. [`CallerState::hello`] and [`CallerState::welcome`] connect it.
    ///
    /// # Errors
    /// Returns an error if memory, completion queue or channel cannot be allocated.
    pub fn new(nic: Nic, mut config: CallerConfig) -> Result<Self> {
        config.plan = P::plan(config.plan).with_mtu(nic.mtu());
        let path = P::Response::new(&config);
        Ok(Self { state: CallerState::new(nic, config)?, path })
    }

    /// Begins a call. The payload is copied at once; [`CallerState::next_completion`] returns the outcome. Calls that
    /// begin while there is no connection wait for the next one.
    ///
    /// # Errors
    /// Returns an error if the window is full of incomplete calls, or the request exceeds the server's limit.
    #[inline]
    pub fn submit(
        &mut self,
        method: u16,
        payload: &[u8],
        context: CallContext,
        now: Nanos,
    ) -> std::result::Result<CallId, CallError> {
        let Self { state, path, .. } = self;
        if let Some(end) = &state.end {
            let max_bytes = end.welcome.request_bytes_max as usize;
            if payload.len() > max_bytes {
                return Err(CallError::RequestTooLarge { len_bytes: payload.len(), max_bytes });
            }
        }
        let at = state.calls.begin(method, context)?;
        state.counters.calls.increment();
        let id = state.calls.get(at).id;
        if !state.send_at_once::<P::Response, P::Request>(path, at, payload, now) {
            state.calls.get(at).request.extend_from_slice(payload);
            state.queue.push_call(at);
        }
        Ok(id)
    }
}

impl<P: Path> Endpoint for Caller<P> {
    #[inline]
    fn progress(&mut self, now: Nanos) -> Progress {
        let Self { state, path, .. } = self;
        state.expire(now);
        let mut has_sent = state.pump::<P::Response, P::Request>(path, now);
        let mut any = has_sent;
        state.post_fetches(now);
        let waits_for_wake = state.collecting.server_notifies() && state.calls.deferred > 0;
        let server_notifies =
            state.fetches.are_in_flight() || (P::Response::SENDS && !state.messages.is_empty());
        if server_notifies || waits_for_wake || state.turns_to_poll == 0 || state.retransmit.is_armed {
            state.turns_to_poll = TURNS_PER_POLL;
            any |= state.poll_completions();
        } else {
            state.turns_to_poll -= 1;
        }
        let received = state.receive(path, now);
        let has_event = state.collecting.has_event();
        if has_event {
            state.schedule_collect(now);
        }
        if received || has_event {
            has_sent |= state.pump::<P::Response, P::Request>(path, now);
            any |= has_sent;
        }
        // The responses to messages that were sent after `arm` are not requested to wake this client yet.
        if received || state.calls.has_done() || (has_sent && state.retransmit.is_armed) {
            state.retransmit.is_armed = false;
            return Progress::Again;
        }
        if P::MINDS_SILENCE {
            state.kick_if_late::<P::Request>(now);
        }
        if any && !state.fetches.are_in_flight() && state.messages.is_empty() {
            return Progress::Again;
        }
        Progress::Idle { until: state.until::<P>() }
    }

    fn arm(&mut self) -> Result<()> {
        let state = &mut self.state;
        state.counters.arms.increment();
        while let Ok(Some(_)) = state.channel.poll_cq_event() {}
        // SENDs wake the client by themselves. A response that is fetched nevertheless belongs to an executed message,
        // so the completion of its READ wakes the client.
        if !P::Response::SENDS {
            state.request_pushes();
        }
        state.retransmit.is_armed = true;
        state.cq.req_notify(Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.state.channel.fd());
    }

    fn prefers_sleep(&self) -> bool {
        self.state.exceeds_quick_fetches()
    }
}
