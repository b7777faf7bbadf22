//! What comes back to the requester: acknowledgements, data, refusals.

use farcall_verbs::{Access, AsyncEventKind, QpState, RnrTimer, WcStatus};

use super::Qp;
use crate::packet::{Body, Nak, Psn};
use crate::state::State;

impl Qp {
    /// An answer of the peer.
    pub(super) fn answered(&mut self, state: &mut State, psn: Psn, body: Body) {
        // An answer to a packet that was never sent, or is over, is old.
        if !self.runs() || !self.requester.is_in_flight(psn) {
            return;
        }
        match body {
            Body::Ack => drop(self.acknowledge(state, psn)),
            Body::ReadResponse(payload) => self.data_came(state, psn, &payload),
            Body::AtomicResponse(value) => self.data_came(state, psn, &value.to_ne_bytes()),
            Body::Nak(nak) => self.refused(state, psn, nak),
            Body::NotReady(wait) => self.put_off(state, psn, wait),
            _ => {}
        }
        self.fail_if_first(state);
        if self.runs() {
            self.requester.skip_acknowledged();
            let now_ns = state.now_ns;
            self.pump_at(state, now_ns);
        }
    }

    /// Everything up to `psn` was executed. Returns whether that is so: if data is missing before it, it is asked for.
    fn acknowledge(&mut self, state: &mut State, psn: Psn) -> bool {
        let mut has_progressed = false;
        let mut is_complete = true;
        while let Some(queued) = self.requester.queue.front() {
            let Some(begun) = queued.begun else { break };
            if psn.is_before(begun.psn) {
                break;
            }
            if queued.request.returns_data() {
                // Its answers were lost: an acknowledgement of something later says so (IBA 9.7.5.1.2).
                is_complete = false;
                break;
            }
            has_progressed = true;
            if psn.is_before(begun.last()) {
                self.requester.set_acknowledged(psn.plus(1));
                break;
            }
            self.requester.set_acknowledged(begun.last().plus(1));
            self.end_first(state, WcStatus::SUCCESS);
        }
        if has_progressed {
            self.progressed(state);
        }
        if !is_complete {
            self.ask_again(state);
        }
        is_complete
    }

    /// As [`Qp::acknowledge`], for everything before `psn`.
    fn acknowledge_before(&mut self, state: &mut State, psn: Psn) -> bool {
        psn == self.requester.unacknowledged() || self.acknowledge(state, psn.before())
    }

    fn progressed(&mut self, state: &mut State) {
        self.renew_retries();
        self.requester.asked_again = false;
        self.restart_ack_timer(state);
    }

    /// Goes back to the first missing answer; once, until something comes.
    fn ask_again(&mut self, state: &mut State) {
        if !std::mem::replace(&mut self.requester.asked_again, true) {
            let missing = self.requester.unacknowledged();
            self.go_back(state, missing);
        }
    }

    /// Data for a READ or atomic.
    fn data_came(&mut self, state: &mut State, psn: Psn, bytes: &[u8]) {
        let waiting = self.requester.queue.iter().position(|queued| queued.request.returns_data());
        let Some(begun) = waiting.and_then(|at| self.requester.queue[at].begun) else { return };
        if psn.is_before(begun.next_answer()) {
            return;
        }
        if psn != begun.next_answer() {
            self.acknowledge(state, begun.psn.before());
            self.ask_again(state);
            return;
        }
        // It answers what comes after all writes and sends before it: they were executed.
        if self.requester.unacknowledged() != psn {
            self.acknowledge(state, psn.before());
        }
        self.take_data(state, bytes);
    }

    /// Lets data land for the first request in the queue.
    fn take_data(&mut self, state: &mut State, bytes: &[u8]) {
        let mtu_bytes = self.mtu_bytes();
        let domain = self.domain();
        let Some(queued) = self.requester.queue.front_mut() else { return };
        let Some(begun) = queued.begun.as_mut() else { return };
        let offset = u64::from(begun.answers) * mtu_bytes;
        let len = bytes.len() as u64;
        if len != (queued.request.len - offset).min(mtu_bytes) {
            self.fail_first(state, WcStatus::BAD_RESP_ERR);
            return;
        }
        let pieces = state.admit_list(domain, &queued.request.sges, (offset, len), Access::LOCAL_WRITE);
        let Some(pieces) = pieces else {
            self.fail_first(state, WcStatus::LOC_PROT_ERR);
            return;
        };
        begun.answers += 1;
        let (next, is_last) = (begun.next_answer(), begun.answers == begun.packets);
        state.store_list(&pieces, bytes);
        self.requester.set_acknowledged(next);
        if is_last {
            self.end_first(state, WcStatus::SUCCESS);
        }
        self.progressed(state);
    }

    fn put_off(&mut self, state: &mut State, psn: Psn, wait: RnrTimer) {
        if self.acknowledge_before(state, psn) {
            self.not_ready(state, wait);
        }
    }

    fn refused(&mut self, state: &mut State, psn: Psn, nak: Nak) {
        if !self.acknowledge_before(state, psn) {
            return;
        }
        let status = match nak {
            Nak::Sequence => {
                self.go_back(state, psn);
                return;
            }
            Nak::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
            Nak::RemoteAccess => WcStatus::REM_ACCESS_ERR,
            Nak::RemoteOperation => WcStatus::REM_OP_ERR,
        };
        self.fail_first(state, status);
    }

    /// A send queue that is told to drain has.
    pub(super) fn tell_if_drained(&mut self, state: &mut State) {
        if self.state == QpState::Sqd && !self.requester.waits() && std::mem::take(&mut self.tells_drained) {
            state.async_event(self.context, AsyncEventKind::SqDrained, self.num);
        }
    }
}
