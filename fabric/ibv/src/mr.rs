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

/// Pages of our own, unmapped when dropped.
struct Pages {
    base: NonNull<c_void>,
    len_bytes: usize,
}

impl Pages {
    fn allocate(len_bytes: usize) -> Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let base = require_memory(len_bytes as u64).and_then(|()| {
            // SAFETY: a new private mapping.
            unsafe { mmap_anonymous(ptr::null_mut(), len_bytes, prot, MapFlags::PRIVATE) }
        });
        let base = base.map_err(|errno| Error::os("alloc_mr", format!("map {len_bytes} bytes"), errno))?;
        let base = NonNull::new(base).ok_or_else(|| Error::invalid("alloc_mr", "mapped at address zero"))?;
        Ok(Self { base, len_bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `allocate`; the region over it is deregistered.
        if let Err(errno) = unsafe { munmap(self.base.as_ptr(), self.len_bytes) } {
            tracing::warn!("registered memory could not be unmapped: {errno}");
        }
    }
}

pub(crate) struct Mr {
    pd: Arc<Pd>,
    /// `None` once deregistered.
    raw: Option<NonNull<abi::Mr>>,
    attr: MrAttr,
    /// What `alloc_mr` allocated; `None` for the caller's own memory.
    pages: Option<Pages>,
}

// SAFETY: libibverbs' objects may be used from any thread; the memory is only handed out as a raw pointer.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    pub(crate) fn allocate(pd: &Arc<Pd>, len_bytes: usize, access: Access) -> Result<Self> {
        let rounded = len_bytes.checked_next_multiple_of(page_size()).filter(|len| *len > 0);
        let len_bytes = rounded.ok_or_else(|| {
            Error::invalid("alloc_mr", format!("{len_bytes} bytes; at least one, and no overflow"))
        })?;
        let pages = Pages::allocate(len_bytes)?;
        // SAFETY: mapped until `pages` is dropped, after deregistration; nothing refers to it.
        let mut mr = unsafe { Self::register(pd, pages.base.as_ptr().cast(), len_bytes, access) }?;
        // Work requests name the memory by address; from here on it is reached through that.
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
        // SAFETY: a domain of the library; the memory is the caller's promise.
        let raw =
            unsafe { (pd.open.library.reg_mr)(pd.as_ptr(), addr.cast(), len_bytes, access.bits() as i32) };
        let raw = fault::non_null(raw, |source| fault::register(len_bytes, source))?;
        // SAFETY: the region lives until deregistered; its keys do not change.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        let attr = MrAttr { addr, remote_addr: addr as u64, len_bytes, lkey, rkey, access };
        Ok(Self { pd: Arc::clone(pd), raw: Some(raw), attr, pages: None })
    }

    fn revoke(&mut self) -> Revoked {
        let Some(raw) = self.raw.take() else { return Revoked::Now };
        // SAFETY: registered by `register`, deregistered once.
        match fault::check(unsafe { (self.pd.open.library.dereg_mr)(raw.as_ptr()) }) {
            // The device has fenced its accesses when it answers.
            Ok(()) => Revoked::Now,
            Err(error) => {
                tracing::warn!(
                    "a region of {} bytes could not be deregistered: {error}",
                    self.attr.len_bytes
                );
                // The device may still reach the pages: they are never given back.
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
