//! Completion of requests, and the flush of all requests of a queue pair.

use farcall_verbs::{AsyncEventKind, QpState, QpType, Wc, WcOpcode, WcStatus};

use super::send_queue::Queued;
use super::{Qp, Settings};
use crate::adapter::{Adapter, Event};

impl<S, R> Qp<S, R> {
    /// Completes the first send request.
    pub(super) fn end_first(&mut self, adapter: &mut impl Adapter<S, R>, status: WcStatus) {
        let Some(queued) = self.sends.pop() else { return };
        if self.config.transport != QpType::Rc
            && let Some(begun) = queued.begun
        {
            self.sends.unacknowledged = begun.last().plus(1);
        }
        self.report_sent(adapter, queued, status);
        self.notify_if_drained(adapter);
    }

    fn report_sent(&self, adapter: &mut impl Adapter<S, R>, queued: Queued<S>, status: WcStatus) {
        let request = &queued.request;
        let mut wc = Wc::ended(0, self.config.qpn, request.opcode(), status);
        if status.is_success() && request.returns_data() {
            wc.byte_len = request.len_bytes as u32;
        }
        adapter.sent(queued.posted, wc);
    }

    /// Fails the first send request, and with it the queue pair; for an unreliable one only the send queue (IBA 10.3.1,
    /// table 92).
    pub(super) fn fail_first(&mut self, adapter: &mut impl Adapter<S, R>, status: WcStatus) {
        self.end_first(adapter, status);
        if self.config.transport == QpType::Rc {
            self.enter_error(adapter);
        } else {
            self.set_state(adapter, QpState::Sqe);
            self.stop_timers(adapter);
            self.flush_sends(adapter);
        }
    }

    pub(super) fn flush_sends(&mut self, adapter: &mut impl Adapter<S, R>) {
        while let Some(queued) = self.sends.pop() {
            self.report_sent(adapter, queued, WcStatus::WR_FLUSH_ERR);
        }
    }

    pub(super) fn fail_receive(&self, adapter: &mut impl Adapter<S, R>, receive: R, status: WcStatus) {
        adapter.received(receive, Wc::ended(0, self.config.qpn, WcOpcode::RECV, status), false);
    }

    /// Moves to the ERR state: all posted requests are flushed, and accesses in progress are void.
    pub fn enter_error(&mut self, adapter: &mut impl Adapter<S, R>) {
        if self.state == QpState::Err {
            return;
        }
        self.set_state(adapter, QpState::Err);
        self.stop_timers(adapter);
        for receive in self.responder.abandon() {
            self.fail_receive(adapter, receive, WcStatus::WR_FLUSH_ERR);
        }
        adapter.flush_receives();
        self.flush_sends(adapter);
        if self.config.has_srq {
            adapter.event(Event::Async(AsyncEventKind::QpLastWqeReached));
        }
    }

    /// Moves to the RESET state: all posted requests are discarded.
    pub(super) fn reset(&mut self, adapter: &mut impl Adapter<S, R>) {
        self.set_state(adapter, QpState::Reset);
        self.stop_timers(adapter);
        self.settings = Settings::NONE;
        self.sends = super::SendQueue::default();
        self.congestion.reset_pace();
        self.window.reset();
        self.responder.reset();
    }
}
