//! The owner's handle of a shared receive queue.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Error, PostError, RawSrq, RecvWr, Result, SrqAttr, SrqCap, SrqInUse};

use crate::host::srq::SrqCore;

pub(crate) struct Srq(pub(crate) Arc<SrqCore>);

impl Srq {
    /// The queue behind a handle, if it is of this provider.
    pub(crate) fn core_of(srq: &dyn RawSrq) -> Result<Arc<SrqCore>> {
        let ours = srq.as_any().downcast_ref::<Self>().map(|srq| srq.0.clone());
        ours.ok_or_else(|| Error::invalid("create_qp", "a shared receive queue of another provider"))
    }
}

impl RawSrq for Srq {
    fn srq_num(&self) -> u32 {
        self.0.number
    }

    fn query(&self) -> Result<SrqCap> {
        Ok(self.0.cap())
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        self.0.modify(attr)
    }

    fn destroy(self: Box<Self>) -> Result<(), SrqInUse> {
        let users = self.0.users();
        if users == 0 {
            return Ok(());
        }
        let source = Error::InvalidState {
            operation: "destroy_srq",
            object: format!("shared receive queue {}", self.0.number),
            state: format!("in use by {users} queue pairs"),
            remedy: "destroy them first",
        };
        Err(SrqInUse { srq: self, source })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.0.post(wrs)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
