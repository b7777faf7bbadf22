//! Responses at the requester: acknowledgements, data, refusals.

use farcall_verbs::{RnrTimer, WcStatus};

use super::Qp;
use crate::adapter::Adapter;
use crate::packet::{Nak, Operation, Packet, Syndrome};
use crate::psn::Psn;

impl<S, R> Qp<S, R> {
    /// Handles a response of the peer.
    pub(super) fn handle_response(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        packet: &Packet,
        payload: &[u8],
    ) {
        let psn = packet.psn;
        // A response to a packet that was never sent, or that has completed, is stale.
        if !self.runs() || !self.sends.is_in_flight(psn) {
            return;
        }
        match packet.operation {
            Operation::Acknowledge(aeth) => match aeth.syndrome {
                Syndrome::Ack => drop(self.acknowledge(adapter, psn)),
                Syndrome::Rnr(wait) => self.handle_rnr_nak(adapter, psn, wait),
                Syndrome::Nak(nak) => self.handle_nak(adapter, psn, nak),
            },
            Operation::ReadResponse(..) => self.handle_read_data(adapter, psn, payload),
            Operation::AtomicAcknowledge(_, old) => self.handle_read_data(adapter, psn, &old.to_ne_bytes()),
            _ => {}
        }
        self.fail_if_first(adapter);
        if self.runs() {
            self.sends.skip_acknowledged();
        }
    }

    /// Completes the requests up to `psn`. Returns whether all of them were complete; if data of an earlier READ or
    /// atomic is missing, it is requested again.
    fn acknowledge(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn) -> bool {
        let mut has_progressed = false;
        let mut is_complete = true;
        let before = self.sends.unacknowledged;
        let ahead = self.sends.next_to_send().distance_from(before);
        while let Some(queued) = self.sends.queue.front() {
            let Some(begun) = queued.begun else { break };
            if psn.is_before(begun.psn) {
                break;
            }
            if queued.request.returns_data() {
                // Its responses were lost, as the acknowledgement of a later request implies (IBA 9.7.5.1.2).
                is_complete = false;
                break;
            }
            has_progressed = true;
            if psn.is_before(begun.last()) {
                self.sends.unacknowledged = psn.plus(1);
                break;
            }
            self.sends.unacknowledged = begun.last().plus(1);
            self.end_first(adapter, WcStatus::SUCCESS);
        }
        if has_progressed {
            self.window.acknowledged(self.sends.unacknowledged.distance_from(before), ahead);
            self.progressed(adapter);
        }
        if !is_complete {
            self.request_missing(adapter);
        }
        is_complete
    }

    /// Like [`Qp::acknowledge`], for everything before `psn`.
    fn acknowledge_before(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn) -> bool {
        psn == self.sends.unacknowledged || self.acknowledge(adapter, psn.previous())
    }

    fn progressed(&mut self, adapter: &mut impl Adapter<S, R>) {
        self.renew_retries();
        self.sends.has_rerequested = false;
        self.restart_ack_timer(adapter);
    }

    /// Goes back to the first missing response, at most once until a response arrives.
    fn request_missing(&mut self, adapter: &mut impl Adapter<S, R>) {
        if !std::mem::replace(&mut self.sends.has_rerequested, true) {
            self.go_back(adapter, self.sends.unacknowledged);
        }
    }

    /// Handles data for a READ or atomic.
    fn handle_read_data(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, data: &[u8]) {
        let first = self.sends.queue.iter().find(|queued| queued.request.returns_data());
        let Some(begun) = first.and_then(|queued| queued.begun) else { return };
        if psn.is_before(begun.next_response()) {
            return;
        }
        if psn != begun.next_response() {
            self.acknowledge(adapter, begun.psn.previous());
            self.request_missing(adapter);
            return;
        }
        // It responds to a request after all WRITEs and SENDs before it, so they were executed.
        if self.sends.unacknowledged != psn {
            self.acknowledge(adapter, psn.previous());
        }
        self.store_read_data(adapter, data);
    }

    /// Stores data for the first request in the queue.
    fn store_read_data(&mut self, adapter: &mut impl Adapter<S, R>, data: &[u8]) {
        let mtu_bytes = self.mtu_bytes();
        let ahead = self.sends.next_to_send().distance_from(self.sends.unacknowledged);
        let Some(queued) = self.sends.queue.front_mut() else { return };
        let Some(begun) = queued.begun.as_mut() else { return };
        let offset = u64::from(begun.responses) * mtu_bytes;
        if data.len() as u64 != (queued.request.len_bytes - offset).min(mtu_bytes) {
            self.fail_first(adapter, WcStatus::BAD_RESP_ERR);
            return;
        }
        if adapter.scatter(&queued.posted, offset, data).is_err() {
            self.fail_first(adapter, WcStatus::LOC_PROT_ERR);
            return;
        }
        begun.responses += 1;
        let is_last = begun.responses == begun.packets;
        self.sends.unacknowledged = begun.next_response();
        self.window.acknowledged(1, ahead);
        if is_last {
            self.end_first(adapter, WcStatus::SUCCESS);
        }
        self.progressed(adapter);
    }

    fn handle_rnr_nak(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, wait: RnrTimer) {
        if self.acknowledge_before(adapter, psn) {
            self.not_ready(adapter, wait);
        }
    }

    fn handle_nak(&mut self, adapter: &mut impl Adapter<S, R>, psn: Psn, nak: Nak) {
        if !self.acknowledge_before(adapter, psn) {
            return;
        }
        let status = match nak {
            // The request will be resent after the RNR wait; some peers also send a sequence NAK for each packet after
            // it.
            Nak::PsnSequence if self.timers.is_rnr_waiting() => return,
            Nak::PsnSequence => {
                self.go_back(adapter, psn);
                return;
            }
            Nak::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
            Nak::RemoteAccess => WcStatus::REM_ACCESS_ERR,
            Nak::RemoteOperation => WcStatus::REM_OP_ERR,
        };
        self.fail_first(adapter, status);
    }
}
