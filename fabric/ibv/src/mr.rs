//! Memory regions.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use farcall_shm::require_memory;
use farcall_verbs::{Access, Error, MrAttr, RawMr, Result, Revoked};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::fault;
use crate::pd::Pd;
use farcall_layout as abi;

/// Anonymous pages, unmapped when dropped.
struct Pages {
    base: NonNull<c_void>,
    len_bytes: usize,
}

impl Pages {
    fn allocate(len_bytes: usize) -> Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let base = require_memory(len_bytes as u64).and_then(|()| {
            // SAFETY: a new private mapping aliases no existing memory.
            unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, prot, MapFlags::PRIVATE) }
        });
        let base = base.map_err(|errno| Error::os("alloc_mr", format!("map {len_bytes} bytes"), errno))?;
        let base = NonNull::new(base).ok_or_else(|| Error::invalid("alloc_mr", "mapped at address zero"))?;
        Ok(Self { base, len_bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `allocate` created the mapping, and the region over it is deregistered before `pages` is dropped.
        if let Err(errno) = unsafe { munmap(self.base.as_ptr(), self.len_bytes) } {
            tracing::warn!("registered memory could not be unmapped: {errno}");
        }
    }
}

pub(crate) struct Mr {
    pd: Arc<Pd>,
    /// `None` after deregistration.
    raw: Option<NonNull<abi::Mr>>,
    attr: MrAttr,
    /// Pages allocated by `alloc_mr`; `None` for memory of the caller.
    pages: Option<Pages>,
}

// SAFETY: libibverbs' objects may be used from any thread; the memory is exposed as a raw pointer only.
unsafe impl Send for Mr {}
// SAFETY: shared access only reads `attr`; libibverbs' objects may be used from several threads at once.
unsafe impl Sync for Mr {}

impl Mr {
    pub(crate) fn allocate(pd: &Arc<Pd>, len_bytes: usize, access: Access) -> Result<Self> {
        let rounded = len_bytes.checked_next_multiple_of(page_size()).filter(|len| *len > 0);
        let len_bytes = rounded.ok_or_else(|| {
            Error::invalid("alloc_mr", format!("{len_bytes} bytes; at least one, and no overflow"))
        })?;
        let pages = Pages::allocate(len_bytes)?;
        // SAFETY: the memory stays mapped until `pages` is dropped, after deregistration, and no references to it
        // exist.
        let mut mr = unsafe { Self::register(pd, pages.base.as_ptr().cast(), len_bytes, access) }?;
        // Work requests contain the memory's address as a number.
        mr.attr.addr.expose_provenance();
        mr.pages = Some(pages);
        Ok(mr)
    }

    /// # Safety
    /// See [`farcall_verbs::ProtectionDomain::reg_mr`].
    pub(crate) unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: `pd` keeps the domain alive. The memory is as `ProtectionDomain::reg_mr` requires, by the contract of
        // this function.
        let raw =
            unsafe { (pd.open.library.reg_mr)(pd.as_ptr(), addr.cast(), len_bytes, access.bits() as i32) };
        let raw = fault::non_null(raw, |source| fault::register(len_bytes, source))?;
        // SAFETY: the region exists until it is deregistered, and its keys do not change.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        let attr = MrAttr { addr, remote_addr: addr as u64, len_bytes, lkey, rkey, access };
        Ok(Self { pd: Arc::clone(pd), raw: Some(raw), attr, pages: None })
    }

    fn revoke(&mut self) -> Revoked {
        let Some(raw) = self.raw.take() else { return Revoked::Now };
        // SAFETY: `register` registered the region; `take` ensures that it is deregistered only once.
        match fault::check(unsafe { (self.pd.open.library.dereg_mr)(raw.as_ptr()) }) {
            // When the call returns, the device no longer accesses the memory.
            Ok(()) => Revoked::Now,
            Err(error) => {
                tracing::warn!(
                    "a region of {} bytes could not be deregistered: {error}",
                    self.attr.len_bytes
                );
                // The device may still access the pages, so they are never unmapped.
                std::mem::forget(self.pages.take());
                Revoked::Quarantined
            }
        }
    }
}

impl RawMr for Mr {
    fn attr(&self) -> &MrAttr {
        &self.attr
    }

    fn dereg(mut self: Box<Self>) -> Revoked {
        self.revoke()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let _ = self.revoke();
    }
}
