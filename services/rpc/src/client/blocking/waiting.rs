//! The wait loop of a blocking client: driver iterations, checks of the bootstrap connection, sleeping, reconnection.

use std::time::Duration;

use farcall_drive::{arm_then_poll, sleep_on};
use farcall_verbs::{Clock, Nanos, Progress};

use super::ClientOf;
use crate::client::erased::AnyCaller;
use crate::client::session::ReconnectAction;

/// Interval between checks of the bootstrap connection while there are no results. A check costs a system call.
pub(super) const CHECK_PERIOD: Duration = Duration::from_millis(1);

impl<C: AnyCaller + ?Sized> ClientOf<C> {
    /// Makes several driver iterations. If no call completes, waits according to the plan, at most until `deadline`.
    pub(super) fn turn_until(&mut self, deadline: Option<Nanos>) {
        if self.ends_in_child() {
            return;
        }
        let next = self.session.turns(self.now);
        if self.session.caller.has_completion() {
            self.idle_policy.worked();
            self.next_check = self.now + CHECK_PERIOD;
            return;
        }
        self.now = self.session.clock.now();
        if !self.session.caller.is_open() {
            if let Some(pause) = self.try_reconnect() {
                std::thread::sleep(pause);
            }
            return;
        }
        match next {
            Progress::Again => self.idle_policy.worked(),
            Progress::Idle { .. } if self.idle_policy.was_idle(self.session.caller.poll_weight()) => {
                self.sleep_until(deadline)
            }
            Progress::Idle { .. } => self.check_if_due(),
        }
    }

    #[inline]
    pub(super) fn check_if_due(&mut self) {
        if self.now >= self.next_check {
            self.check_bootstrap();
        }
    }

    #[cold]
    pub(super) fn check_bootstrap(&mut self) {
        self.next_check = self.now + CHECK_PERIOD;
        self.session.check_bootstrap();
    }

    #[cold]
    fn sleep_until(&mut self, deadline: Option<Nanos>) {
        self.now = self.session.clock.now();
        let Progress::Idle { until } = arm_then_poll(&mut *self.session.caller, self.now) else { return };
        if self.session.caller.has_completion() {
            // The last poll has found it; no event follows.
            return;
        }
        if self.session.caller.pending() == 0 && self.session.caller.available() > 0 {
            // The client waits for a slot of a cancelled call. The response to such a call raises no event at the
            // client.
            return;
        }
        let until = Nanos::earlier(until, deadline);
        self.set.clear();
        self.session.caller.wait_set(&mut self.set);
        if let Some(bootstrap) = &self.session.bootstrap {
            self.set.insert(bootstrap.fd());
        }
        // If the system cannot sleep on descriptors, the client polls; only processor time is lost.
        let _ = sleep_on(self.set.fds(), until.map(|until| until.since(self.now)));
        self.idle_policy.woke();
        self.now = self.session.clock.now();
        self.check_if_due();
    }

    /// Called without a connection: tries to connect if an attempt is due. Returns how long there is nothing to do.
    #[cold]
    pub(super) fn try_reconnect(&mut self) -> Option<Duration> {
        match self.session.reconnect_action(self.now) {
            ReconnectAction::None | ReconnectAction::Abandoned => None,
            ReconnectAction::Pause(pause) => Some(pause),
            ReconnectAction::Connect(timeout) => {
                if self.session.connect(timeout).is_err() {
                    self.session.failed();
                }
                self.now = self.session.clock.now();
                None
            }
        }
    }
}
