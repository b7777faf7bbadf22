//! Where a queue pair's completions go.

use std::sync::Arc;

use farcall_verbs::{Error, QpInitAttr, RawCq, Result};

use crate::cq::{Cq, CqCore};

/// A completion queue and our bit there.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) cq: Arc<CqCore>,
    pub(crate) bit: u32,
}

impl Place {
    /// Reserves places for sends and for receives of a queue pair; one place if it is one queue.
    pub(crate) fn reserve(attr: &QpInitAttr<'_>) -> Result<(Self, Self)> {
        let queue = |cq: &dyn RawCq| {
            let cq = cq.as_any().downcast_ref::<Cq>();
            cq.map(|cq| cq.core().clone())
                .ok_or_else(|| Error::invalid("create_qp", "a completion queue of another provider"))
        };
        let (send_cq, recv_cq) = (queue(attr.send_cq)?, queue(attr.recv_cq)?);
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

    /// Whether both are one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cq, &other.cq) && self.bit == other.bit
    }

    /// Gives the places of a queue pair back.
    pub(crate) fn release(send: &Self, recv: &Self) {
        send.cq.detach(send.bit);
        if !send.is_same(recv) {
            recv.cq.detach(recv.bit);
        }
    }
}
