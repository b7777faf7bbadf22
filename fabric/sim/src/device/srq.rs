//! The program's handles of shared receive queues.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{
    Error, PostError, RawSrq, RecvRules, RecvWr, Result, SrqAttr, SrqCap, SrqInUse, SrqInitAttr,
};

use crate::fabric::Fabric;
use crate::receive::ReceiveQueue;
use crate::srq::Srq;
use crate::trace::RecordKind;

/// The program's handle of a shared receive queue.
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
        let SrqInitAttr { max_wr, max_sge } = *attr;
        let queue = ReceiveQueue::new(RecvRules::of_srq(max_wr, max_sge), max_wr);
        let id = state.srqs.insert(Srq { context, queue, max_sge, limit: 0, is_owned: true });
        state.note(RecordKind::Create, [2, u64::from(id), 0, 0]);
        drop(state);
        Ok(Self { fabric: fabric.clone(), id })
    }
}

impl Drop for SimSrq {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        if let Some(srq) = state.srqs.get_mut(self.id) {
            srq.is_owned = false;
        }
        state.release_srq(self.id);
    }
}

fn destroyed(operation: &'static str) -> Error {
    Error::InvalidState {
        operation,
        object: "shared receive queue".into(),
        state: "gone".into(),
        remedy: "make a new one",
    }
}

impl RawSrq for SimSrq {
    fn srq_num(&self) -> u32 {
        self.id
    }

    fn query(&self) -> Result<SrqCap> {
        let state = self.fabric.call();
        let srq = state.srqs.get(self.id).ok_or_else(|| destroyed("query_srq"))?;
        Ok(SrqCap { max_wr: srq.queue.max_wr(), max_sge: srq.max_sge, srq_limit: srq.limit })
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        const OP: &str = "modify_srq";
        let mut state = self.fabric.call();
        let most = state.params.limits.qp_wr;
        let srq = state.srqs.get_mut(self.id).ok_or_else(|| destroyed(OP))?;
        let max_wr = attr.max_wr.unwrap_or(srq.queue.max_wr());
        if max_wr == 0 || max_wr > most {
            return Err(Error::invalid(OP, format!("max_wr {max_wr}: 1 to {most}")));
        }
        if attr.srq_limit.is_some_and(|limit| limit > max_wr) {
            return Err(Error::invalid(OP, format!("srq_limit beyond the {max_wr} receives it holds")));
        }
        if !srq.queue.resize(RecvRules::of_srq(max_wr, srq.max_sge), max_wr) {
            return Err(Error::invalid(OP, format!("max_wr {max_wr}: it holds more receives now")));
        }
        if let Some(limit) = attr.srq_limit {
            srq.limit = limit;
        }
        state.raise_limit_event(self.id);
        Ok(())
    }

    fn destroy(self: Box<Self>) -> Result<(), SrqInUse> {
        let users = self.fabric.call().users_of(self.id);
        if users == 0 {
            return Ok(());
        }
        let source = Error::InvalidState {
            operation: "destroy_srq",
            object: format!("shared receive queue {}", self.id),
            state: format!("in use by {users} queue pairs"),
            remedy: "destroy them first",
        };
        Err(SrqInUse { srq: self, source })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut state = self.fabric.post();
        for (posted, wr) in wrs.iter().enumerate() {
            let Some(srq) = state.srqs.get_mut(self.id) else { break };
            srq.queue.push(wr).map_err(|source| PostError::new(posted, source))?;
            state.note(RecordKind::PostReceive, [u64::from(self.id), wr.wr_id, 1, 0]);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
