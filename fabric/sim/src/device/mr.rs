//! The program's handles of memory regions.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Access, Error, MrAttr, RawMr, Result, Revoked};

use crate::devices::Devices;
use crate::fabric::Fabric;
use crate::memory::{MAX_MR_BYTES, remote_addr};
use crate::packet::Node;
use crate::pages::may_access;

const PAGE_BYTES: usize = 4096;

/// Zeroed pages owned by this object.
struct Pages {
    base: *mut u8,
    layout: Layout,
}

impl Pages {
    fn new(len_bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES).map_err(|_| {
            Error::invalid("alloc_mr", format!("{len_bytes} bytes are more than there can be"))
        })?;
        // SAFETY: the size is not zero: `SimMr::alloc` rejects zero bytes and rounds up to complete pages.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(Error::Exhausted {
                operation: "alloc_mr",
                what: "memory",
                limit: len_bytes as u64,
                remedy: "register less",
            });
        }
        base.expose_provenance();
        Ok(Self { base, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// The program's handle of a region.
pub(crate) struct SimMr {
    fabric: Arc<Fabric>,
    id: u32,
    attr: MrAttr,
    /// Freed after the region is deregistered, which `drop` does before the fields are dropped.
    _pages: Option<Pages>,
}

// SAFETY: this type never dereferences the pointer; the memory is accessed under the world's lock, or by the program.
unsafe impl Send for SimMr {}
// SAFETY: shared access only reads the fields, which never change.
unsafe impl Sync for SimMr {}

impl SimMr {
    pub(crate) fn alloc(
        fabric: &Arc<Fabric>,
        domain: (Node, u32),
        len: usize,
        access: Access,
    ) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("alloc_mr", "memory of no bytes; allocate at least one"));
        }
        access.check_registration("alloc_mr", len, MAX_MR_BYTES)?;
        let len_bytes = len
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(|| Error::invalid("alloc_mr", format!("{len} bytes are more than there can be")))?;
        let pages = Pages::new(len_bytes)?;
        Self::insert(fabric, domain, (pages.base, len_bytes), access, Some(pages))
    }

    pub(crate) fn register(
        fabric: &Arc<Fabric>,
        domain: (Node, u32),
        addr: *mut u8,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_registration("reg_mr", len_bytes, MAX_MR_BYTES)?;
        if (addr as u64).checked_add(len_bytes as u64).is_none() {
            return Err(Error::invalid("reg_mr", "the memory wraps around the end of the address space"));
        }
        let is_empty = len_bytes == 0;
        if !is_empty && !may_access(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE)) {
            let what = "the memory is not mapped, or not with the permissions asked for";
            return Err(Error::invalid("reg_mr", what));
        }
        addr.expose_provenance();
        Self::insert(fabric, domain, (addr, len_bytes), access, None)
    }

    fn insert(
        fabric: &Arc<Fabric>,
        domain: (Node, u32),
        (addr, len_bytes): (*mut u8, usize),
        access: Access,
        pages: Option<Pages>,
    ) -> Result<Self> {
        let Devices { memory, scheduler, params, .. } = &mut fabric.call().devices;
        let range = (addr as u64, len_bytes as u64);
        let (id, key) = memory.register(&mut scheduler.time, domain, range, access, params.limits.mrs)?;
        let attr = MrAttr { addr, remote_addr: remote_addr(id), len_bytes, lkey: key, rkey: key, access };
        Ok(Self { fabric: fabric.clone(), id, attr, _pages: pages })
    }
}

impl Drop for SimMr {
    fn drop(&mut self) {
        self.fabric.call().deregister(self.id);
    }
}

impl RawMr for SimMr {
    fn attr(&self) -> &MrAttr {
        &self.attr
    }

    fn dereg(self: Box<Self>) -> Revoked {
        Revoked::Now
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
