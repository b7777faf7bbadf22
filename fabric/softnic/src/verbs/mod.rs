//! Objects that programs hold. Each has one owner; the part of its state that other threads share is in
//! `shm_transport`.

mod captured;
mod channel;
mod cq;
mod datagram;
mod device;
mod limits;
mod mr;
mod qp;
mod srq;

pub use device::SoftNic;

use std::sync::Arc;

use farcall_verbs::{Error, QpInitAttr, RawCq, Result};

use crate::shm_transport::cq::CqCore;
use crate::shm_transport::events::Events;
use crate::shm_transport::{CqSlot, QpResources, ShmTransport};

/// Port number of the device.
const PORT: u8 = 1;

fn require_port(operation: &'static str, port_num: u8) -> Result<()> {
    if port_num == PORT {
        return Ok(());
    }
    Err(Error::invalid(operation, format!("port {port_num}; the device has port {PORT}")))
}

/// Returns the resources of a new queue pair according to its attributes, with reserved completion queue bits.
fn resources_of(
    shm: &Arc<ShmTransport>,
    events: &Arc<Events>,
    pd: u32,
    attr: &QpInitAttr<'_>,
) -> Result<QpResources> {
    let srq = attr.srq.map(srq::Srq::core_of).transpose()?;
    let mut cap = qp::checked_cap(&attr.cap)?;
    if srq.is_some() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let (send_slot, recv_slot) = reserve_slots(attr)?;
    let (shm, events, signal_all) = (shm.core.clone(), events.clone(), attr.sq_sig_all);
    Ok(QpResources { shm, events, pd, cap, srq, signal_all, send_slot, recv_slot })
}

/// Reserves completion queue bits for sends and receives of a queue pair.
fn reserve_slots(attr: &QpInitAttr<'_>) -> Result<(CqSlot, CqSlot)> {
    let core = |cq: &dyn RawCq| -> Result<Arc<CqCore>> {
        let cq = cq.as_any().downcast_ref::<cq::Cq>();
        cq.map(|cq| cq.core.clone())
            .ok_or_else(|| Error::invalid("create_qp", "a completion queue of another provider"))
    };
    CqSlot::reserve(core(attr.send_cq)?, core(attr.recv_cq)?)
}
