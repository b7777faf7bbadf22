//! Handling of missing responses: transport retries and receiver-not-ready waits.

use farcall_verbs::{RnrTimer, WcStatus};

use super::Qp;
use crate::adapter::{Adapter, Event, Timer};
use crate::psn::Psn;

/// RNR retry count that means unlimited (IBA 9.7.5.2.8).
const UNLIMITED_RETRIES: u8 = 7;

/// The timers of a requester, and the remaining retries.
#[derive(Default)]
pub(super) struct Timers {
    is_ack_armed: bool,
    is_rnr_waiting: bool,
    retries_left: u8,
    rnr_left: u8,
}

impl Timers {
    pub(super) fn is_rnr_waiting(&self) -> bool {
        self.is_rnr_waiting
    }
}

impl<S, R> Qp<S, R> {
    /// Handles the expiry of a timer that the adapter was requested to set. The caller should call [`Qp::respond`] and
    /// [`Qp::transmit`] afterwards.
    pub fn timed_out(&mut self, adapter: &mut impl Adapter<S, R>, timer: Timer) {
        match timer {
            Timer::Ack => {
                self.timers.is_ack_armed = false;
                // A paced queue pair may have nothing outstanding between two packets.
                let has_paused = self.congestion.is_waiting() && self.sends.has_all_responses();
                if self.runs() && self.sends.waits() && !self.timers.is_rnr_waiting && !has_paused {
                    adapter.event(Event::AckTimeout);
                    self.go_back(adapter, self.sends.unacknowledged);
                }
            }
            Timer::Rnr => {
                if std::mem::take(&mut self.timers.is_rnr_waiting) {
                    self.resend_from(adapter, self.sends.unacknowledged);
                }
            }
            Timer::Pace => self.congestion.end_wait(),
        }
    }

    pub(super) fn renew_retries(&mut self) {
        self.timers.retries_left = self.settings.retry_cnt & 7;
        self.timers.rnr_left = self.settings.rnr_retry & 7;
    }

    /// Starts the acknowledgement timer, unless it is running.
    pub(super) fn start_ack_timer(&mut self, adapter: &mut impl Adapter<S, R>) {
        // IBA 9.7.6.1.3; code 0 means infinite.
        let code = self.settings.timeout & 31;
        if code != 0 && !std::mem::replace(&mut self.timers.is_ack_armed, true) {
            adapter.set_timer(Timer::Ack, Some(4_096 << code));
        }
    }

    pub(super) fn stop_ack_timer(&mut self, adapter: &mut impl Adapter<S, R>) {
        self.timers.is_ack_armed = false;
        adapter.set_timer(Timer::Ack, None);
    }

    /// Restarts the acknowledgement timer after a response, if requests are outstanding.
    pub(super) fn restart_ack_timer(&mut self, adapter: &mut impl Adapter<S, R>) {
        self.stop_ack_timer(adapter);
        if self.sends.waits() {
            self.start_ack_timer(adapter);
        }
    }

    pub(super) fn stop_timers(&mut self, adapter: &mut impl Adapter<S, R>) {
        self.stop_ack_timer(adapter);
        self.timers.is_rnr_waiting = false;
        adapter.set_timer(Timer::Rnr, None);
        self.congestion.end_wait();
        adapter.set_timer(Timer::Pace, None);
    }

    /// Retransmits from a packet on, if retries are left.
    pub(super) fn go_back(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn) {
        if self.timers.retries_left == 0 {
            self.fail_first(adapter, WcStatus::RETRY_EXC_ERR);
            return;
        }
        self.timers.retries_left -= 1;
        self.window.lost();
        adapter.event(Event::GoBack(psn));
        self.resend_from(adapter, psn);
    }

    fn resend_from(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn) {
        self.sends.go_back_to(psn);
        self.stop_ack_timer(adapter);
        self.start_ack_timer(adapter);
    }

    /// Waits because the peer has no receive, if RNR retries are left.
    pub(super) fn not_ready(&mut self, adapter: &mut impl Adapter<S, R>, wait: RnrTimer) {
        if self.timers.is_rnr_waiting {
            return;
        }
        if self.settings.rnr_retry & 7 != UNLIMITED_RETRIES {
            if self.timers.rnr_left == 0 {
                self.fail_first(adapter, WcStatus::RNR_RETRY_EXC_ERR);
                return;
            }
            self.timers.rnr_left -= 1;
        }
        self.stop_ack_timer(adapter);
        self.timers.is_rnr_waiting = true;
        adapter.event(Event::NotReady);
        adapter.set_timer(Timer::Rnr, Some(wait.duration().as_nanos() as u64));
    }
}
