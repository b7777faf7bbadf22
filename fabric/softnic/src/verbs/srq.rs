//! The program's handle of a shared receive queue.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Error, PostError, RawSrq, RecvWr, Result, SrqAttr, SrqCap, SrqInUse};

use crate::shm_transport::ObjectReservation;
use crate::shm_transport::srq::SrqCore;

pub(crate) struct Srq {
    core: Arc<SrqCore>,
    _reservation: ObjectReservation,
}

impl Srq {
    pub(crate) fn new(core: Arc<SrqCore>, reservation: ObjectReservation) -> Self {
        Self { core, _reservation: reservation }
    }

    /// Returns the queue of a handle; an error if the handle belongs to another provider.
    pub(crate) fn core_of(srq: &dyn RawSrq) -> Result<Arc<SrqCore>> {
        let ours = srq.as_any().downcast_ref::<Self>().map(|srq| srq.core.clone());
        ours.ok_or_else(|| Error::invalid("create_qp", "a shared receive queue of another provider"))
    }
}

impl RawSrq for Srq {
    fn srq_num(&self) -> u32 {
        self.core.number
    }

    fn query(&self) -> Result<SrqCap> {
        Ok(self.core.cap())
    }

    fn modify(&mut self, attr: &SrqAttr) -> Result<()> {
        self.core.modify(attr)
    }

    fn destroy(self: Box<Self>) -> Result<(), SrqInUse> {
        let users = self.core.users();
        if users == 0 {
            return Ok(());
        }
        let source = Error::InvalidState {
            operation: "destroy_srq",
            object: format!("shared receive queue {}", self.core.number),
            state: format!("in use by {users} queue pairs"),
            remedy: "destroy them first",
        };
        Err(SrqInUse { srq: self, source })
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.core.post(wrs)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
