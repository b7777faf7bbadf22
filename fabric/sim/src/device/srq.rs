//! The program's handles of shared receive queues.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Error, PostError, RawSrq, RecvWr, Result, SrqAttr, SrqCap, SrqInUse, SrqInitAttr};

use crate::fabric::Fabric;
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
        let devices = &mut fabric.call().devices;
        let limits = devices.params.limits;
        if attr.max_wr == 0 || attr.max_wr > limits.qp_wr || attr.max_sge > limits.sges {
            let what = format!("max_wr 1 to {}, max_sge up to {}", limits.qp_wr, limits.sges);
            return Err(Error::invalid(OP, what));
        }
        let id = devices.srqs.insert(Srq::new(context, attr.max_wr, attr.max_sge));
        devices.note(RecordKind::Create, [2, u64::from(id), 0, 0]);
        Ok(Self { fabric: fabric.clone(), id })
    }
}

impl Drop for SimSrq {
    fn drop(&mut self) {
        let mut state = self.fabric.call();
        if let Some(srq) = state.devices.srqs.get_mut(self.id) {
            srq.disown();
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
        let devices = &self.fabric.call().devices;
        devices.srqs.get(self.id).map(Srq::cap).ok_or_else(|| destroyed("query_srq"))
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        const OP: &str = "modify_srq";
        let devices = &mut self.fabric.call().devices;
        let most = devices.params.limits.qp_wr;
        let srq = devices.srqs.get_mut(self.id).ok_or_else(|| destroyed(OP))?;
        let max_wr = attr.max_wr.unwrap_or(srq.cap().max_wr);
        if max_wr == 0 || max_wr > most {
            return Err(Error::invalid(OP, format!("max_wr {max_wr}: 1 to {most}")));
        }
        if attr.srq_limit.is_some_and(|limit| limit > max_wr) {
            return Err(Error::invalid(OP, format!("srq_limit beyond the {max_wr} receives it holds")));
        }
        if !srq.resize(max_wr) {
            return Err(Error::invalid(OP, format!("max_wr {max_wr}: it holds more receives now")));
        }
        if let Some(limit) = attr.srq_limit {
            srq.set_limit(limit);
        }
        devices.raise_limit_event(self.id);
        Ok(())
    }

    fn destroy(self: Box<Self>) -> Result<(), SrqInUse> {
        let users = self.fabric.call().qps.users_of(self.id);
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
        let devices = &mut self.fabric.post().devices;
        for (posted, wr) in wrs.iter().enumerate() {
            let Some(srq) = devices.srqs.get_mut(self.id) else { break };
            srq.push(wr).map_err(|source| PostError::new(posted, source))?;
            devices.note(RecordKind::PostReceive, [u64::from(self.id), wr.wr_id, 1, 0]);
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
