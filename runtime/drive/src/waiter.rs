//! Waiting of the thread that drives an endpoint: it polls for a while, then sleeps. If there is a poller, it polls in
//! the meantime.

use std::time::Duration;

use farcall_link::Waiting;
use farcall_verbs::{Endpoint, Nanos, Next, WaitSet};

use crate::pollers::Cover;
use crate::{IdleTurns, Pollers, arm_then_look};

/// Waits for work of one endpoint.
pub struct Waiter {
    idle_turns: IdleTurns,
    pollers: Option<Pollers>,
    pub(crate) cover: Option<Cover>,
    is_covered: bool,
    /// `true` if the poller has just released the endpoint in order to sleep.
    was_left: bool,
    armed_at: Nanos,
}

impl Waiter {
    /// Creates the state for the wait strategy `waiting`; `pollers` poll while the thread sleeps.
    pub fn new(waiting: Waiting, pollers: Option<Pollers>) -> Self {
        let idle_turns = IdleTurns::new(waiting);
        Self { idle_turns, pollers, cover: None, is_covered: false, was_left: false, armed_at: Nanos(0) }
    }

    /// Like [`IdleTurns::worked`].
    #[inline]
    pub fn worked(&mut self) {
        self.idle_turns.worked();
    }

    /// Like [`IdleTurns::was_idle`].
    #[inline]
    pub fn was_idle(&mut self, looks: u32) -> bool {
        self.idle_turns.was_idle(looks)
    }

    /// Like [`IdleTurns::end`].
    #[inline]
    pub fn end(&mut self) {
        self.idle_turns.end();
    }

    /// Like [`arm_then_look`], but delegates to the poller if it is polling or is worth waking; otherwise arms the
    /// endpoint's own events.
    pub fn arm_then_look<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E, now: Nanos) -> Next {
        self.is_awake();
        let pause = now.since(std::mem::replace(&mut self.armed_at, now));
        if std::mem::take(&mut self.was_left) || !self.begin_cover(endpoint, pause) {
            return arm_then_look(endpoint, now);
        }
        let next = endpoint.progress(now);
        match &mut self.cover {
            Some(cover) if next == Next::Again => {
                cover.end();
            }
            _ => self.is_covered = true,
        }
        next
    }

    fn begin_cover<E: Endpoint + ?Sized>(&mut self, endpoint: &mut E, pause: Duration) -> bool {
        let wakes = self.pollers.as_ref().is_some_and(|pollers| pollers.look_through(pause));
        let Some(cover) = self.cover_of(endpoint) else { return false };
        cover.is_offered(wakes) && endpoint.arm_covered().is_ok() && cover.begin(wakes)
    }

    fn cover_of<E: Endpoint + ?Sized>(&mut self, endpoint: &E) -> Option<&mut Cover> {
        let probe = endpoint.news_probe().filter(|_| self.pollers.is_some())?;
        if !self.cover.as_ref().is_some_and(|cover| cover.is_of(&probe)) {
            // Without a descriptor for the delegation the thread sleeps on the endpoint's own events.
            self.cover = self.pollers.as_ref()?.cover(probe).ok();
        }
        self.cover.as_mut()
    }

    /// Adds the descriptors on which the thread sleeps to `set`.
    pub fn wait_set<E: Endpoint + ?Sized>(&mut self, endpoint: &E, set: &mut WaitSet) {
        endpoint.wait_set(set);
        if let Some(cover) = self.cover_of(endpoint) {
            set.insert(cover.fd());
        }
    }

    /// Records that the thread has slept.
    pub fn woke(&mut self) {
        self.idle_turns.woke();
        self.is_awake();
    }

    /// Records that the thread goes to sleep by means unknown to this type. It calls [`Waiter::is_awake`] afterwards.
    pub fn will_sleep(&mut self) {
        self.idle_turns.woke();
    }

    /// Ends the delegation after a possible sleep of that kind.
    #[inline]
    pub fn is_awake(&mut self) {
        let Some(cover) = &mut self.cover else { return };
        if std::mem::take(&mut self.is_covered) {
            self.was_left = cover.end();
        } else {
            cover.take_events();
        }
    }
}
