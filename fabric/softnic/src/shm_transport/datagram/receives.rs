//! Source of a datagram's receive: the queue pair's own receive queue, or a shared one.

use std::sync::Arc;

use farcall_verbs::{Access, Sge};

use super::receiver_context::ReceiverContext;
use crate::shm_transport::qp::RecvQueue;
use crate::shm_transport::srq::SrqCore;

#[derive(Clone)]
pub(super) enum Receives {
    Own(Arc<RecvQueue>),
    Shared(Arc<SrqCore>),
}

impl Receives {
    /// Passes the oldest receive to `work`, and removes it if `work` returns a value.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
    #[inline]
    pub(super) unsafe fn consume<R>(&self, work: impl FnOnce(u64, &[Sge]) -> Option<R>) -> Option<Option<R>> {
        match self {
            // SAFETY: by the contract of this function the receive queue has one consumer at a time.
            Self::Own(queue) => unsafe { queue.pop_if(|wr_id, sges, _| work(wr_id, sges)) },
            Self::Shared(srq) => srq.take_if(|receive| work(receive.wr_id, receive.sges())),
        }
    }

    /// Returns whether the first bytes of the receive's scatter elements may take a message of `len_bytes`.
    #[inline]
    pub(super) fn allows(&self, core: &ReceiverContext, sges: &[Sge], len_bytes: u64) -> bool {
        let pd = match self {
            Self::Own(_) => core.pd,
            Self::Shared(srq) => srq.pd,
        };
        core.shm.process.regions.allows_first(sges, len_bytes, pd, Access::LOCAL_WRITE)
    }

    /// Removes and returns the oldest receive of the queue pair's own queue.
    ///
    /// # Safety
    /// Only one thread may call it at a time.
    pub(super) unsafe fn consume_own(&self) -> Option<u64> {
        match self {
            // SAFETY: by the contract of this function the receive queue has one consumer at a time.
            Self::Own(queue) => unsafe { queue.pop(|wr_id, _| wr_id) },
            Self::Shared(_) => None,
        }
    }

    /// Returns whether `consume_own` would return a receive.
    pub(super) fn has_own(&self) -> bool {
        matches!(self, Self::Own(queue) if !queue.is_empty())
    }
}
