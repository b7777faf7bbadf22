//! When no answer comes: transport retries and receiver-not-ready waits.

use farcall_verbs::{RnrTimer, WcStatus};

use super::Qp;
use crate::packet::Psn;
use crate::queue::Event;
use crate::state::State;
use crate::trace::What;

/// Seven RNR retries are for ever (IBA 9.7.5.2.8).
const FOR_EVER: u8 = 7;

/// The timers of a requester. An event is for a timer only if it carries its present life.
#[derive(Default)]
pub(super) struct Timers {
    ack_life: u64,
    is_ack_armed: bool,
    rnr_life: u64,
    is_rnr_waiting: bool,
    retries_left: u8,
    rnr_left: u8,
}

impl Timers {
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.is_rnr_waiting
    }

    fn disarm(&mut self) {
        self.ack_life += 1;
        self.is_ack_armed = false;
    }
}

impl Qp {
    /// The time of an ACK timeout (IBA 9.7.6.1.3); `None`: it never comes.
    fn ack_timeout_ns(&self) -> Option<u64> {
        let code = self.settings.timeout & 31;
        (code != 0).then(|| 4_096 << code)
    }

    pub(super) fn renew_retries(&mut self) {
        self.requester.timers.retries_left = self.settings.retry_cnt & 7;
        self.requester.timers.rnr_left = self.settings.rnr_retry & 7;
    }

    /// Starts the wait for an acknowledgement, unless it runs.
    pub(super) fn start_ack_timer(&mut self, state: &mut State) {
        let Some(timeout_ns) = self.ack_timeout_ns() else { return };
        let timers = &mut self.requester.timers;
        if !timers.is_ack_armed {
            timers.is_ack_armed = true;
            timers.ack_life += 1;
            let at_ns = state.now_ns + timeout_ns;
            state.at(at_ns, Event::AckTimeout { qp: self.id, life: timers.ack_life });
        }
    }

    /// Something came: the wait starts over, if there is anything to wait for.
    pub(super) fn restart_ack_timer(&mut self, state: &mut State) {
        self.requester.timers.disarm();
        if self.requester.waits() {
            self.start_ack_timer(state);
        }
    }

    pub(super) fn stop_timers(&mut self) {
        self.requester.timers.disarm();
        self.requester.timers.rnr_life += 1;
        self.requester.timers.is_rnr_waiting = false;
    }

    pub(crate) fn ack_timeout(&mut self, state: &mut State, life: u64) {
        if self.requester.timers.ack_life != life {
            return;
        }
        self.requester.timers.disarm();
        if self.runs() && self.requester.waits() && !self.requester.timers.is_rnr_waiting {
            state.note(What::Timeout, [u64::from(self.node), u64::from(self.num), 0, 0]);
            let psn = self.requester.unacknowledged();
            self.go_back(state, psn);
        }
    }

    /// Sends again from a packet on, if that is still allowed.
    pub(super) fn go_back(&mut self, state: &mut State, psn: Psn) {
        if self.requester.timers.retries_left == 0 {
            self.fail_first(state, WcStatus::RETRY_EXC_ERR);
            return;
        }
        self.requester.timers.retries_left -= 1;
        state.note(What::GoBack, [u64::from(self.node), u64::from(self.num), psn.number(), 0]);
        self.resend_from(state, psn);
    }

    fn resend_from(&mut self, state: &mut State, psn: Psn) {
        self.requester.go_back_to(psn);
        self.requester.timers.disarm();
        let now_ns = state.now_ns;
        self.pump_at(state, now_ns);
        self.start_ack_timer(state);
    }

    /// The peer has no receive: wait, if that is still allowed.
    pub(super) fn not_ready(&mut self, state: &mut State, wait: RnrTimer) {
        let timers = &mut self.requester.timers;
        if timers.is_rnr_waiting {
            return;
        }
        if self.settings.rnr_retry & 7 != FOR_EVER {
            if timers.rnr_left == 0 {
                self.fail_first(state, WcStatus::RNR_RETRY_EXC_ERR);
                return;
            }
            timers.rnr_left -= 1;
        }
        timers.disarm();
        timers.is_rnr_waiting = true;
        timers.rnr_life += 1;
        let life = timers.rnr_life;
        state.note(What::NotReady, [u64::from(self.node), u64::from(self.num), 0, 0]);
        let at_ns = state.now_ns + wait.duration().as_nanos() as u64;
        state.at(at_ns, Event::RnrOver { qp: self.id, life });
    }

    pub(crate) fn rnr_over(&mut self, state: &mut State, life: u64) {
        if self.requester.timers.rnr_life != life || !self.requester.timers.is_rnr_waiting {
            return;
        }
        self.requester.timers.is_rnr_waiting = false;
        let psn = self.requester.unacknowledged();
        self.resend_from(state, psn);
    }
}
