//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use farcall_verbs::{
    Access, AddressHandle, AhAttr, ProtectionDomain, QpInitAttr, RawMr, RawQp, RawSrq, Result, SrqInitAttr,
};

use crate::abi;
use crate::ah::Handle;
use crate::context::OpenDevice;
use crate::fault;
use crate::mr::Mr;
use crate::qp::Qp;
use crate::srq::Srq;

/// What every object of the domain keeps alive.
pub(crate) struct Pd {
    pub(crate) open: Arc<OpenDevice>,
    raw: NonNull<abi::Pd>,
}

// SAFETY: libibverbs' objects may be used from any thread at once.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(open: &Arc<OpenDevice>) -> Result<Self> {
        // SAFETY: an opened device.
        let raw = unsafe { (open.library.alloc_pd)(open.as_ptr()) };
        let raw = fault::non_null(raw, |source| {
            fault::create("alloc_pd", format!("a protection domain of {}", open.name), source)
        })?;
        Ok(Self { open: Arc::clone(open), raw })
    }

    pub(crate) fn as_ptr(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by `alloc_pd`; every object made of it held a reference to `self` and is gone.
        fault::note_destroy("protection domain", unsafe {
            (self.open.library.dealloc_pd)(self.raw.as_ptr())
        });
    }
}

pub(crate) struct Domain(pub(crate) Arc<Pd>);

impl ProtectionDomain for Domain {
    fn alloc_mr(&self, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        Ok(Box::new(Mr::allocate(&self.0, len_bytes, access)?))
    }

    unsafe fn reg_mr(&self, addr: *mut u8, len_bytes: usize, access: Access) -> Result<Box<dyn RawMr>> {
        // SAFETY: the caller's promise.
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
