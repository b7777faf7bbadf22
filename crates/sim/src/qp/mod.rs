//! Queue pairs as the device knows them.
//!
//! A work request's way: [`post`] checks and queues it; [`requester`] cuts it into packets; [`responder`] checks these in
//! their order and lets payload land; [`jobs`] does in order what follows (completions, READs, atomics, answers);
//! [`answers`] takes answers in at the requester; [`timers`] has what happens when none comes; [`flush`] ends everything.

mod answers;
mod datagram;
mod flush;
mod handle;
mod jobs;
mod modify;
mod post;
mod requester;
mod responder;
mod timers;

use farcall_verbs::{Access, Mtu, QpCap, QpState, QpType, RnrTimer};

use crate::cq::Frees;
use crate::packet::{Body, Node, Packet, Psn};
use crate::receive::ReceiveQueue;
use crate::state::State;
use crate::trace::What;
pub(crate) use handle::SimQp;
pub(crate) use post::operations;
use requester::Requester;
use responder::Responder;

/// What `modify_qp` has set.
#[derive(Clone, Copy, Debug)]
struct Settings {
    access: Access,
    qkey: u32,
    /// Where the peer is; `None`: nowhere that exists.
    peer: Option<Node>,
    dest_qpn: u32,
    mtu: Mtu,
    rnr_timer: RnrTimer,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: Access::empty(),
            qkey: 0,
            peer: None,
            dest_qpn: 0,
            mtu: Mtu::Mtu4096,
            rnr_timer: RnrTimer(0),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
        }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    id: u32,
    context: u32,
    pub(crate) node: Node,
    pd: u32,
    num: u32,
    kind: QpType,
    state: QpState,
    cap: QpCap,
    signal_all: bool,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    /// Whether draining is told.
    tells_drained: bool,
    settings: Settings,
    requester: Requester,
    receives: ReceiveQueue,
    responder: Responder,
    /// Changes whenever everything that is under way becomes void: on error and reset.
    pub(crate) life: u64,
}

impl Qp {
    fn domain(&self) -> (Node, u32) {
        (self.node, self.pd)
    }

    fn mtu_bytes(&self) -> u64 {
        u64::from(self.settings.mtu.bytes())
    }

    fn set_state(&mut self, state: &mut State, to: QpState) {
        self.state = to;
        state.note(What::State, [u64::from(self.node), u64::from(self.num), to as u64, 0]);
    }

    /// Sends a packet to the connected peer; to nowhere if there is none.
    fn send_to_peer(&self, state: &mut State, psn: Psn, body: Body) {
        let Some(dst) = self.settings.peer else { return };
        state.send(Packet {
            src: self.node,
            dst,
            src_qpn: self.num,
            dst_qpn: self.settings.dest_qpn,
            transport: self.kind,
            psn,
            body,
        });
    }

    /// A packet for this pair.
    pub(crate) fn arrived(&mut self, state: &mut State, packet: Packet) {
        if packet.transport != self.kind {
            return;
        }
        if let Body::Datagram { .. } = packet.body {
            self.datagram_arrived(state, packet);
            return;
        }
        let is_of_peer = self.settings.peer == Some(packet.src) && self.settings.dest_qpn == packet.src_qpn;
        if !is_of_peer {
            state.note(What::Ignore, [u64::from(self.node), u64::from(self.num), packet.psn.number(), 0]);
        } else if packet.body.is_answer() {
            self.answered(state, packet.psn, packet.body);
        } else if self.state.responds() {
            self.requested(state, packet.psn, packet.body);
        }
    }

    /// A completion was polled.
    pub(crate) fn polled(&mut self, frees: Frees) {
        match frees {
            Frees::SendsTo(ordinal) => self.requester.reap(ordinal),
            Frees::Receive => self.receives.release(),
            Frees::Nothing => {}
        }
    }
}
