//! Shared receive queues.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{AsyncEventKind, Error, PostError, RawSrq, RecvWr, Result, SrqInitAttr};

use crate::fabric::Fabric;
use crate::receive::{Receive, ReceiveQueue};
use crate::state::State;
use crate::trace::What;

/// A shared receive queue as the device knows it.
pub(crate) struct Srq {
    context: u32,
    queue: ReceiveQueue,
    /// An event is due when fewer receives are left; 0: none.
    limit: u32,
}

impl State {
    /// Takes the next receive of a shared queue.
    pub(crate) fn take_shared(&mut self, id: u32) -> Option<Receive> {
        let srq = self.srqs.get_mut(id)?;
        let receive = srq.queue.pop()?;
        srq.queue.release();
        let context = srq.context;
        if (srq.queue.len() as u32) < srq.limit {
            srq.limit = 0;
            self.async_event(context, AsyncEventKind::SrqLimitReached, id);
        }
        Some(receive)
    }

    pub(crate) fn give_back_shared(&mut self, id: u32, receive: Receive) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.queue.give_back(receive);
        }
    }
}

/// A shared receive queue as its owner has it.
pub(crate) struct SimSrq {
    fabric: Arc<Fabric>,
    pub(crate) id: u32,
}

impl SimSrq {
    pub(crate) fn create(fabric: &Arc<Fabric>, context: u32, attr: &SrqInitAttr) -> Result<Self> {
        const OP: &str = "create_srq";
        let mut state = fabric.call();
        let limits = state.params.limits;
        if attr.max_wr == 0 || attr.max_wr > limits.qp_wr || attr.max_sge > limits.sges {
            let what = format!("max_wr 1 to {}, max_sge up to {}", limits.qp_wr, limits.sges);
            return Err(Error::invalid(OP, what));
        }
        let queue = ReceiveQueue::new(attr.max_wr, attr.max_sge);
        let id = state.srqs.insert(Srq { context, queue, limit: 0 });
        state.note(What::Create, [2, u64::from(id), 0, 0]);
        drop(state);
        Ok(Self { fabric: fabric.clone(), id })
    }
}

impl Drop for SimSrq {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        state.srqs.remove(self.id);
        state.note(What::Destroy, [2, u64::from(self.id), 0, 0]);
    }
}

impl RawSrq for SimSrq {
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut state = self.fabric.post();
        for (posted, wr) in wrs.iter().enumerate() {
            let Some(srq) = state.srqs.get_mut(self.id) else { break };
            srq.queue.push(wr).map_err(|source| PostError { posted, source })?;
            state.note(What::PostReceive, [u64::from(self.id), wr.wr_id, 1, 0]);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
