//! The program's handle of a queue pair.

use std::sync::Arc;

use farcall_verbs::{
    Error, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType, RawMr, RawQp, RecvWr, Result, SendWr,
};

use super::cq::SimCq;
use super::srq::SimSrq;
use crate::fabric::Fabric;
use crate::packet::Node;
use crate::params::Limits;
use crate::qp::QpResources;
use crate::state::State;

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

fn check(limits: Limits, count: usize, attr: &QpInitAttr<'_>) -> Result<()> {
    const OP: &str = "create_qp";
    let cap = attr.cap;
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
    if count >= limits.qps as usize {
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
        domain: (Node, u32),
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
        let State { devices, qps, .. } = &mut *fabric.call();
        check(devices.params.limits, qps.count(domain.0), attr)?;
        let cap = QpCap { max_recv_wr: if srq.is_some() { 0 } else { attr.cap.max_recv_wr }, ..attr.cap };
        let resources = QpResources { context, domain, send_cq, recv_cq, srq };
        let (id, num) = qps.create(devices, resources, attr, &cap);
        let places_in_order = devices.params.placement_in_order;
        Ok(Self { fabric: fabric.clone(), id, num, kind: attr.qp_type, cap, places_in_order })
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        self.fabric.call().destroy_qp(self.id);
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
        self.fabric.lock().qps.state(self.id).unwrap_or(QpState::Err)
    }

    fn cap(&self) -> QpCap {
        self.cap
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        let State { devices, qps, .. } = &mut *self.fabric.call();
        let modified = qps.with(devices, self.id, |transport, nic| nic.modify(transport, attr));
        modified.unwrap_or_else(|| Err(destroyed("modify_qp", self.num)))
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let State { devices, qps, .. } = &mut *self.fabric.post();
        // SAFETY: inline elements are readable, by the contract of `RawQp::post_send`; `Nic::post_send` requires only
        // that.
        let posted = qps.with(devices, self.id, |transport, nic| unsafe { nic.post_send(transport, wrs) });
        posted.unwrap_or_else(|| Err(PostError::new(0, destroyed("post_send", self.num))))
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let State { devices, qps, .. } = &mut *self.fabric.post();
        let posted = qps.with(devices, self.id, |transport, nic| nic.post_recv(transport, wrs));
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
