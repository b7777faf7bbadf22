//! Protection domains.

use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, ProtectionDomain, QpInitAttr, RawMr, RawQp, RawSrq, Result, SrqInitAttr,
};

use crate::ah::Handle;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::Srq;

pub(crate) struct Domain(pub(crate) Arc<Pd>);

impl ProtectionDomain for Domain {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        Ok(Box::new(Mr::allocate(&self.0, len_bytes, access)?))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        // SAFETY: this function and `Mr::register` have the same contract, and the arguments are unchanged.
        Ok(Box::new(unsafe { Mr::register(&self.0, addr, len_bytes, access) }?))
    }

    fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Box<dyn RawQp>> {
        Ok(Box::new(Qp::create(&self.0, attr)?))
    }

    fn create_srq(&self, attr: &SrqInitAttr) -> Result<Box<dyn RawSrq>> {
        Ok(Box::new(Srq::create(&self.0, attr)?))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Box<dyn AddressHandle>> {
        Ok(Box::new(Handle::create(&self.0, attr)?))
    }
}
