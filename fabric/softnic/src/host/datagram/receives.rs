//! Where datagrams find their receives: the pair's own queue, or one that it shares.

use std::sync::Arc;

use farcall_verbs::{Access, Sge};

use super::DatagramCore;
use crate::host::qp::RecvQueue;
use crate::host::srq::SrqCore;

#[derive(Clone)]
pub(super) enum Receives {
    Own(Arc<RecvQueue>),
    Shared(Arc<SrqCore>),
}

impl Receives {
    /// The oldest receive, given to `work` and then removed, if `work` made something of it.
    ///
    /// # Safety
    /// One thread at a time.
    #[inline]
    pub(super) unsafe fn take<R>(&self, work: impl FnOnce(u64, &[Sge]) -> Option<R>) -> Option<Option<R>> {
        match self {
            // SAFETY: the caller's promise.
            Self::Own(queue) => unsafe { queue.pop_if(|wr_id, sges, _| work(wr_id, sges)) },
            Self::Shared(srq) => srq.take_if(|receive| work(receive.wr_id, receive.sges())),
        }
    }

    /// Whether the first bytes of a receive's elements may take a message of `len_bytes`.
    #[inline]
    pub(super) fn allows(&self, core: &DatagramCore, sges: &[Sge], len_bytes: u64) -> bool {
        let pd = match self {
            Self::Own(_) => core.pd,
            Self::Shared(srq) => srq.pd,
        };
        core.host.process.regions.allows_first(sges, len_bytes, pd, Access::LOCAL_WRITE)
    }

    /// The oldest receive that is the pair's own, removed.
    ///
    /// # Safety
    /// One thread at a time.
    pub(super) unsafe fn take_own(&self) -> Option<u64> {
        match self {
            // SAFETY: the caller's promise.
            Self::Own(queue) => unsafe { queue.pop(|wr_id, _| wr_id) },
            Self::Shared(_) => None,
        }
    }

    /// Whether `take_own` finds one.
    pub(super) fn has_own(&self) -> bool {
        matches!(self, Self::Own(queue) if !queue.is_empty())
    }
}
