//! Unreliable datagrams.

use farcall_verbs::{Access, QpType, Wc, WcFlags, WcOpcode, WcStatus};

use super::Qp;
use crate::packet::{Body, Node, Packet, Psn};
use crate::receive::Receive;
use crate::state::State;

/// Bytes in front of every received datagram (`struct ibv_grh`).
const GRH_BYTES: usize = 40;

impl Qp {
    pub(super) fn send_datagram(
        &self,
        state: &mut State,
        peer: Option<Node>,
        dst_qpn: u32,
        psn: Psn,
        body: Body,
    ) {
        let Some(dst) = peer else { return };
        let src_qpn = self.num;
        state.send(Packet { src: self.node, dst, src_qpn, dst_qpn, transport: QpType::Ud, psn, body });
    }

    /// A datagram arrives; it is dropped if it is not for this pair, too long, or nothing is posted.
    pub(super) fn datagram_arrived(&mut self, state: &mut State, packet: Packet) {
        let Body::Datagram { qkey, imm_be, solicited, payload } = packet.body else { return };
        if !self.state.responds() || qkey != self.settings.qkey {
            return;
        }
        let mut bytes = self.route_header(state, packet.src, payload.len());
        bytes.extend_from_slice(&payload);
        let len = bytes.len() as u64;
        // One that is too long takes no receive.
        let fits = |next: &Receive| len <= next.room();
        let taken = match self.srq {
            Some(srq) => state.take_shared_if(srq, fits),
            None => self.receives.pop_if(fits),
        };
        let Some(receive) = taken else { return };
        let range = (0, len);
        let Some(pieces) = state.admit_list(self.domain(), &receive.sges, range, Access::LOCAL_WRITE) else {
            self.fail_receive(state, &receive, WcStatus::LOC_PROT_ERR);
            return;
        };
        state.store_list(&pieces, &bytes);
        let mut wc = Wc::ended(receive.wr_id, self.num, WcOpcode::RECV, WcStatus::SUCCESS);
        wc.byte_len = bytes.len() as u32;
        wc.src_qp = packet.src_qpn;
        wc.wc_flags = WcFlags::GRH;
        if let Some(imm_be) = imm_be {
            wc.imm_data_be = imm_be;
            wc.wc_flags |= WcFlags::WITH_IMM;
        }
        self.tell_received(state, wc, solicited);
    }

    /// What stands in front: the packet's IPv4 header in the last 20 of 40 bytes, as RoCEv2 devices leave it.
    fn route_header(&self, state: &State, src: Node, payload_bytes: usize) -> Vec<u8> {
        const HEADERS_BYTES: usize = 20 + 8 + 12 + 8 + 4;
        let mut header = vec![0; GRH_BYTES];
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((payload_bytes + HEADERS_BYTES) as u16).to_be_bytes());
        ip[8] = 64;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&state.nodes[src as usize].gid.0[12..]);
        ip[16..20].copy_from_slice(&state.nodes[self.node as usize].gid.0[12..]);
        header
    }
}
