//! Completion queue slots of a queue pair, and the resources from which it is created.

use std::sync::Arc;

use farcall_verbs::{QpCap, Result};

use super::core::ShmCore;
use super::cq::CqCore;
use super::events::Events;
use super::srq::SrqCore;

/// Resources of a new queue pair.
pub(crate) struct QpResources {
    pub(crate) shm: Arc<ShmCore>,
    pub(crate) events: Arc<Events>,
    pub(crate) pd: u32,
    pub(crate) cap: QpCap,
    pub(crate) srq: Option<Arc<SrqCore>>,
    pub(crate) signal_all: bool,
    pub(crate) send_slot: CqSlot,
    pub(crate) recv_slot: CqSlot,
}

/// A completion queue and the queue pair's readiness bit there.
#[derive(Clone)]
pub(crate) struct CqSlot {
    pub(crate) cq: Arc<CqCore>,
    pub(crate) bit: u32,
}

impl CqSlot {
    /// Reserves readiness bits for the sends and receives of a queue pair; one common bit if both use the same queue.
    pub(crate) fn reserve(send_cq: Arc<CqCore>, recv_cq: Arc<CqCore>) -> Result<(Self, Self)> {
        let send = Self { bit: send_cq.reserve_bit()?, cq: send_cq };
        if Arc::ptr_eq(&send.cq, &recv_cq) {
            return Ok((send.clone(), send));
        }
        match recv_cq.reserve_bit() {
            Ok(bit) => Ok((send, Self { bit, cq: recv_cq })),
            Err(error) => {
                send.cq.detach(send.bit);
                Err(error)
            }
        }
    }

    /// Returns whether both slots are the same bit of the same queue.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cq, &other.cq) && self.bit == other.bit
    }

    /// Releases the readiness bits of a queue pair.
    pub(crate) fn release(send: &Self, recv: &Self) {
        send.cq.detach(send.bit);
        if !send.is_same(recv) {
            recv.cq.detach(recv.bit);
        }
    }
}
