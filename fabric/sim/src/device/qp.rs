//! The program's handle of a queue pair.

use std::sync::Arc;

use farcall_verbs::{
    Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvRules, RecvWr, Result,
    SendRules, SendWr,
};
use farcall_wire::QpConfig;

use super::cq::SimCq;
use super::srq::SimSrq;
use crate::fabric::Fabric;
use crate::packet::Node;
use crate::qp::{DeviceSide, PROVIDER, Progress, Qp, Transport};
use crate::receive::ReceiveQueue;
use crate::state::State;
use crate::trace::RecordKind;

/// The program's handle of a queue pair.
pub(crate) struct SimQp {
    fabric: Arc<Fabric>,
    id: u32,
    num: u32,
    kind: QpType,
    cap: QpCap,
    places_in_order: bool,
}

fn other_world(what: &'static str) -> Error {
    Error::invalid("create_qp", format!("the {what} is another provider's or another world's"))
}

fn check(state: &State, node: Node, attr: &QpInitAttr<'_>) -> Result<()> {
    const OP: &str = "create_qp";
    let (limits, cap) = (state.params.limits, attr.cap);
    let sizes = [
        ("max_send_wr", cap.max_send_wr, limits.qp_wr),
        ("max_recv_wr", cap.max_recv_wr, limits.qp_wr),
        ("max_send_sge", cap.max_send_sge, limits.sges),
        ("max_recv_sge", cap.max_recv_sge, limits.sges),
        ("max_inline_data", cap.max_inline_data, limits.inline_bytes),
    ];
    for (name, asked, limit) in sizes {
        if asked > limit {
            return Err(Error::invalid(OP, format!("{name} {asked}: up to {limit}")));
        }
    }
    if state.nodes[node as usize].qps.len() >= limits.qps as usize {
        return Err(Error::Exhausted {
            operation: OP,
            what: "queue pairs",
            limit: limits.qps.into(),
            remedy: "destroy some",
        });
    }
    Ok(())
}

impl SimQp {
    pub(crate) fn create(
        fabric: &Arc<Fabric>,
        context: u32,
        (node, pd): (Node, u32),
        attr: &QpInitAttr<'_>,
    ) -> Result<Self> {
        let cq = |cq: &dyn farcall_verbs::RawCq| cq.as_any().downcast_ref::<SimCq>().map(|cq| cq.id);
        let send_cq = cq(attr.send_cq).ok_or_else(|| other_world("send queue's completion queue"))?;
        let recv_cq = cq(attr.recv_cq).ok_or_else(|| other_world("receive queue's completion queue"))?;
        let srq = match attr.srq {
            None => None,
            Some(srq) => {
                let srq = srq.as_any().downcast_ref::<SimSrq>();
                Some(srq.ok_or_else(|| other_world("shared receive queue"))?.id)
            }
        };
        let mut state = fabric.call();
        check(&state, node, attr)?;
        let cap = QpCap { max_recv_wr: if srq.is_some() { 0 } else { attr.cap.max_recv_wr }, ..attr.cap };
        let id = state.qps.next_id();
        let num = new_number(&mut state, node);
        let transport = Transport::new(QpConfig {
            qpn: num,
            transport: attr.qp_type,
            has_srq: srq.is_some(),
            port_mtu: state.params.mtu,
            message_bytes_max: state.params.limits.message_bytes,
            unacknowledged_min: state.params.unacknowledged_min,
            unacknowledged_max: state.params.unacknowledged_max,
            read_packets_max: u32::MAX,
            rate_control: state.params.rate_control,
        });
        let device = DeviceSide {
            id,
            context,
            node,
            pd,
            num,
            send_cq,
            recv_cq,
            srq,
            signals_all: attr.sq_sig_all,
            rules: SendRules::new(PROVIDER, attr.qp_type, &cap),
            receives: ReceiveQueue::new(RecvRules::of_pair(&cap, srq.is_some()), cap.max_recv_wr),
            peer: None,
            progress: Progress::default(),
        };
        state.qps.insert(Qp { transport, device });
        state.nodes[node as usize].qps.insert(num, id);
        state.note(RecordKind::Create, [4, u64::from(id), u64::from(num), 0]);
        let places_in_order = state.params.placement_in_order;
        drop(state);
        Ok(Self { fabric: fabric.clone(), id, num, kind: attr.qp_type, cap, places_in_order })
    }
}

/// Returns an unused number. Numbers are reused only after all others were used.
fn new_number(state: &mut State, node: Node) -> u32 {
    let of_node = &mut state.nodes[node as usize];
    loop {
        let num = of_node.next_qpn;
        of_node.next_qpn = if num >= 0x00ff_fffe { 2 } else { num + 1 };
        if !of_node.qps.contains_key(&num) {
            return num;
        }
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        if let Some(qp) = state.qps.remove(self.id).map(|qp| qp.device) {
            state.nodes[qp.node as usize].qps.remove(&qp.num);
            for cq in [qp.send_cq, qp.recv_cq] {
                if let Some(cq) = state.cqs.get_mut(cq) {
                    cq.discard(self.id);
                }
            }
            state.note(RecordKind::Destroy, [4, u64::from(self.id), 0, 0]);
            if let Some(srq) = qp.srq {
                state.release_srq(srq);
            }
        }
    }
}

impl RawQp for SimQp {
    fn qp_num(&self) -> u32 {
        self.num
    }

    fn qp_type(&self) -> QpType {
        self.kind
    }

    fn state(&self) -> QpState {
        let state = self.fabric.lock();
        state.qps.get(self.id).map_or(QpState::Err, |qp| qp.transport.state())
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        let mut state = self.fabric.call();
        let modified = state.with_qp(self.id, |transport, nic| nic.modify(transport, attr));
        modified.unwrap_or_else(|| Err(destroyed("modify_qp", self.num)))
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut state = self.fabric.post();
        // SAFETY: inline elements are readable, by the contract of `RawQp::post_send`; `Nic::post_send` requires only
        // that.
        let posted = state.with_qp(self.id, |transport, nic| unsafe { nic.post_send(transport, wrs) });
        posted.unwrap_or_else(|| Err(PostError::new(0, destroyed("post_send", self.num))))
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut state = self.fabric.post();
        let posted = state.with_qp(self.id, |transport, nic| nic.post_recv(transport, wrs));
        posted.unwrap_or_else(|| Err(PostError::new(0, destroyed("post_recv", self.num))))
    }

    fn places_in_order(&self, _mr: &dyn RawMr) -> bool {
        self.places_in_order
    }

    fn is_quiesced(&self) -> bool {
        // A queue pair that left RTR/RTS places nothing more from that moment on.
        true
    }
}

fn destroyed(operation: &'static str, num: u32) -> Error {
    Error::InvalidState {
        operation,
        object: format!("queue pair {num:#x}"),
        state: "gone with its node".into(),
        remedy: "make a new one",
    }
}
