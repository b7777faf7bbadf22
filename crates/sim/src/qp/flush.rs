//! How requests end, and how a queue pair ends them all.

use farcall_verbs::{AsyncEventKind, QpState, QpType, Wc, WcOpcode, WcStatus};

use super::Qp;
use super::requester::Queued;
use super::responder::Responder;
use crate::cq::{Entry, Frees};
use crate::receive::{Receive, ReceiveQueue};
use crate::state::State;

impl Qp {
    /// The first send request is over.
    pub(super) fn end_first(&mut self, state: &mut State, status: WcStatus) {
        let ordinal = self.requester.first;
        let Some(queued) = self.requester.pop() else { return };
        if self.kind != QpType::Rc
            && let Some(begun) = queued.begun
        {
            self.requester.set_acknowledged(begun.last().plus(1));
        }
        self.tell_sent(state, &queued, ordinal, status);
        self.tell_if_drained(state);
    }

    fn tell_sent(&self, state: &mut State, queued: &Queued, ordinal: u64, status: WcStatus) {
        let request = &queued.request;
        if !request.is_signalled && status.is_success() {
            return;
        }
        let mut wc = Wc::ended(request.wr_id, self.num, request.opcode(), status);
        if status.is_success() && request.returns_data() {
            wc.byte_len = request.len as u32;
        }
        let entry = Entry { wc, qp: self.id, frees: Frees::SendsTo(ordinal) };
        state.complete(self.send_cq, entry, false);
    }

    /// The first send request fails, and with it the queue pair; of an unreliable one only the send queue
    /// (IBA 10.3.1, table 92).
    pub(super) fn fail_first(&mut self, state: &mut State, status: WcStatus) {
        self.end_first(state, status);
        if self.kind == QpType::Rc {
            self.enter_error(state);
        } else {
            self.set_state(state, QpState::Sqe);
            self.stop_timers();
            self.flush_sends(state);
        }
    }

    pub(super) fn flush_sends(&mut self, state: &mut State) {
        loop {
            let ordinal = self.requester.first;
            let Some(queued) = self.requester.pop() else { break };
            self.tell_sent(state, &queued, ordinal, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// A receive is over.
    pub(super) fn tell_received(&self, state: &mut State, wc: Wc, is_solicited: bool) {
        let frees = if self.srq.is_some() { Frees::Nothing } else { Frees::Receive };
        let entry = Entry { wc: Wc { qp_num: self.num, ..wc }, qp: self.id, frees };
        state.complete(self.recv_cq, entry, is_solicited);
    }

    pub(super) fn fail_receive(&self, state: &mut State, receive: &Receive, status: WcStatus) {
        self.tell_received(state, Wc::ended(receive.wr_id, self.num, WcOpcode::RECV, status), false);
    }

    pub(super) fn flush_receives(&mut self, state: &mut State) {
        while let Some(receive) = self.receives.pop() {
            self.fail_receive(state, &receive, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// Everything that is posted is flushed; what is under way has no further effect.
    pub(crate) fn enter_error(&mut self, state: &mut State) {
        if self.state == QpState::Err {
            return;
        }
        self.set_state(state, QpState::Err);
        self.life += 1;
        self.stop_timers();
        for receive in self.responder.abandon() {
            self.fail_receive(state, &receive, WcStatus::WR_FLUSH_ERR);
        }
        self.flush_receives(state);
        self.flush_sends(state);
        if self.srq.is_some() {
            state.async_event(self.context, AsyncEventKind::QpLastWqeReached, self.num);
        }
    }

    /// Everything that is posted is forgotten, with its completions.
    pub(super) fn reset(&mut self, state: &mut State) {
        self.set_state(state, QpState::Reset);
        self.life += 1;
        self.stop_timers();
        self.requester.reset();
        self.receives = ReceiveQueue::new(self.cap.max_recv_wr, self.cap.max_recv_sge);
        self.responder = Responder::default();
        for cq in [self.send_cq, self.recv_cq] {
            if let Some(cq) = state.cqs.get_mut(cq) {
                cq.forget(self.id);
            }
        }
    }
}
