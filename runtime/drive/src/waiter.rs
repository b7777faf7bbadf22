//! Waiting of the thread that drives an endpoint: it polls for a while, then sleeps. If there is a poller, it polls in
//! the meantime.

use std::time::Duration;

use farcall_link::WaitStrategy;
use farcall_verbs::{Endpoint, Nanos, Progress, WaitSet};

use crate::pollers::PollDelegation;
use crate::{IdlePolicy, Pollers, arm_then_poll};

/// Waits for work of one endpoint.
pub struct Waiter {
    idle_policy: IdlePolicy,
    pollers: Option<Pollers>,
    pub(crate) delegation: Option<PollDelegation>,
    is_delegated: bool,
    /// `true` if the poller has just released the endpoint in order to sleep.
    was_released: bool,
    armed_at: Nanos,
}

impl Waiter {
    /// Creates the state for the wait strategy `waiting`; `pollers` poll while the thread sleeps.
    pub fn new(waiting: WaitStrategy, pollers: Option<Pollers>) -> Self {
        let idle_policy = IdlePolicy::new(waiting);
        Self {
            idle_policy,
            pollers,
            delegation: None,
            is_delegated: false,
            was_released: false,
            armed_at: Nanos(0),
        }
    }

    /// Like [`IdlePolicy::worked`].
    #[inline]
    pub fn worked(&mut self) {
        self.idle_policy.worked();
    }

    /// Like [`IdlePolicy::was_idle`].
    #[inline]
    pub fn was_idle(&mut self, poll_weight: u32) -> bool {
        self.idle_policy.was_idle(poll_weight)
    }

    /// Like [`IdlePolicy::end`].
    #[inline]
    pub fn end(&mut self) {
        self.idle_policy.end();
    }

    /// Like [`arm_then_poll`], but delegates to the poller if it is polling or is worth waking; otherwise arms the
    /// endpoint's own events.
    pub fn arm_then_poll<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E, now: Nanos) -> Progress {
        self.is_awake();
        let pause = now.since(std::mem::replace(&mut self.armed_at, now));
        if std::mem::take(&mut self.was_released) || !self.begin_delegation(endpoint, pause) {
            return arm_then_poll(endpoint, now);
        }
        let next = endpoint.progress(now);
        match &mut self.delegation {
            Some(delegation) if next == Progress::Again => {
                delegation.end();
            }
            _ => self.is_delegated = true,
        }
        next
    }

    fn begin_delegation<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E, pause: Duration) -> bool {
        let wakes = self.pollers.as_ref().is_some_and(|pollers| pollers.polls_through(pause));
        let Some(delegation) = self.delegation_of(endpoint) else { return false };
        delegation.is_available(wakes) && endpoint.arm_delegated().is_ok() && delegation.begin(wakes)
    }

    fn delegation_of<E: Endpoint + ?Sized>(&mut self, endpoint: &E) -> Option<&mut PollDelegation> {
        let probe = endpoint.wake_probe().filter(|_| self.pollers.is_some())?;
        if !self.delegation.as_ref().is_some_and(|delegation| delegation.is_for(&probe)) {
            // Without a descriptor for the delegation the thread sleeps on the endpoint's own events.
            self.delegation = self.pollers.as_ref()?.delegate(probe).ok();
        }
        self.delegation.as_mut()
    }

    /// Adds the descriptors on which the thread sleeps to `set`.
    pub fn wait_set<E: Endpoint + ?Sized>(&mut self, endpoint: &E, set: &mut WaitSet) {
        endpoint.wait_set(set);
        if let Some(delegation) = self.delegation_of(endpoint) {
            set.insert(delegation.fd());
        }
    }

    /// Records that the thread has slept.
    pub fn woke(&mut self) {
        self.idle_policy.woke();
        self.is_awake();
    }

    /// Records that the thread goes to sleep by means unknown to this type. It calls [`Waiter::is_awake`] afterwards.
    pub fn will_sleep(&mut self) {
        self.idle_policy.woke();
    }

    /// Ends the delegation after a possible sleep of that kind.
    #[inline]
    pub fn is_awake(&mut self) {
        let Some(delegation) = &mut self.delegation else { return };
        if std::mem::take(&mut self.is_delegated) {
            self.was_released = delegation.end();
        } else {
            delegation.take_events();
        }
    }
}
