//! Unreliable datagrams.

use farcall_verbs::{Wc, WcFlags, WcOpcode, WcStatus};

use super::Qp;
use super::replies::Received;
use crate::adapter::{AccessOutcome, Adapter, GRH_BYTES, PlacementTarget};
use crate::packet::Deth;

impl<S, R> Qp<S, R> {
    /// Handles a datagram. It is dropped if it is not for this queue pair, if it is too long, or if no receive is
    /// posted.
    pub(super) fn datagram_arrived(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        deth: Deth,
        (imm_be, is_solicited): (Option<u32>, bool),
        payload: &[u8],
    ) {
        if !self.state.responds() || deth.qkey != self.settings.qkey {
            return;
        }
        let len_bytes = GRH_BYTES + payload.len() as u64;
        // A datagram that is too long consumes no receive.
        let Some((receive, _)) = adapter.take_receive(len_bytes) else { return };
        let token = self.responder.next_token();
        let accessed = adapter.place(token, PlacementTarget::Datagram(&receive), payload);
        if accessed == AccessOutcome::Denied {
            self.fail_receive(adapter, receive, WcStatus::LOC_PROT_ERR);
            return;
        }
        let mut wc = Wc::ended(0, self.config.qpn, WcOpcode::RECV, WcStatus::SUCCESS);
        wc.byte_len = len_bytes as u32;
        wc.src_qp = deth.src_qpn;
        wc.wc_flags = WcFlags::GRH;
        if let Some(imm_be) = imm_be {
            wc.imm_data_be = imm_be;
            wc.wc_flags |= WcFlags::WITH_IMM;
        }
        self.received_after(adapter, accessed, token, Received { receive, wc, is_solicited });
    }
}
