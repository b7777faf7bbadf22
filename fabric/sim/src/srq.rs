//! Shared receive queues.

use farcall_verbs::AsyncEventKind;

use crate::receive::{Receive, ReceiveQueue};
use crate::state::State;
use crate::trace::RecordKind;

/// The device's state of a shared receive queue.
pub(crate) struct Srq {
    pub(crate) context: u32,
    pub(crate) queue: ReceiveQueue,
    pub(crate) max_sge: u32,
    /// The limit event is raised when fewer receives remain; 0 means not armed.
    pub(crate) limit: u32,
    pub(crate) is_owned: bool,
}

impl State {
    /// Takes the next receive of a shared queue if `will_do` returns true for it.
    pub(crate) fn take_shared_if(&mut self, id: u32, will_do: impl Fn(&Receive) -> bool) -> Option<Receive> {
        let srq = self.srqs.get_mut(id)?;
        let receive = srq.queue.pop_if(will_do)?;
        srq.queue.release();
        self.raise_limit_event(id);
        Some(receive)
    }

    /// Raises the limit event, once, if fewer receives remain than the limit.
    pub(crate) fn raise_limit_event(&mut self, id: u32) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        if (srq.queue.len() as u32) < srq.limit {
            srq.limit = 0;
            let context = srq.context;
            self.async_event(context, AsyncEventKind::SrqLimitReached, id);
        }
    }
}

impl State {
    pub(crate) fn users_of(&self, srq: u32) -> usize {
        self.qps.iter().filter(|(_, qp)| qp.device.srq == Some(srq)).count()
    }

    /// Removes a shared queue that has neither owner nor users.
    pub(crate) fn release_srq(&mut self, id: u32) {
        let is_owned = self.srqs.get(id).is_none_or(|srq| srq.is_owned);
        if !is_owned && self.users_of(id) == 0 {
            self.srqs.remove(id);
            self.note(RecordKind::Destroy, [2, u64::from(id), 0, 0]);
        }
    }
}
