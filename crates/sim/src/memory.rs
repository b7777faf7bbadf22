//! Registered memory: the table of regions, their checks, and the one place where the simulated devices touch memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr;
use std::sync::Arc;

use farcall_verbs::{Access, Error, RawMr, Result, Revoked, Sge};

use crate::fabric::Fabric;
use crate::packet::Node;
use crate::pages::may_access;
use crate::state::State;
use crate::trace::{What, hash_bytes};

const PAGE_BYTES: usize = 4096;

/// A region as the devices know it.
pub(crate) struct Mr {
    pub(crate) node: Node,
    pub(crate) pd: u32,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
}

impl Mr {
    fn holds(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr);
        addr >= self.addr && offset <= self.len && len <= self.len - offset
    }
}

/// Memory that a check has admitted. It stays valid until the next step of an endpoint: regions are only deregistered
/// there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) mr: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl State {
    /// Whether a key of a node opens `len` bytes at `addr` for what is needed, within a protection domain.
    pub(crate) fn admit(
        &self,
        (node, pd): (Node, u32),
        key: u32,
        (addr, len): (u64, u64),
        need: Access,
    ) -> Option<Admitted> {
        let id = *self.nodes.get(node as usize)?.keys.get(&key)?;
        let mr = self.mrs.get(id)?;
        let fits = mr.pd == pd && mr.access.contains(need) && mr.holds(addr, len);
        fits.then_some(Admitted { mr: id, addr, len })
    }

    /// Copies admitted memory out.
    pub(crate) fn fetch(&mut self, from: Admitted) -> Vec<u8> {
        let mut bytes = vec![0; from.len as usize];
        let source = ptr::with_exposed_provenance::<u8>(from.addr as usize);
        // SAFETY: `admit` found the bytes inside of a registered region, whose registrant promised that it stays mapped
        // until it is deregistered, and no endpoint had a turn since. Reads race with nothing: a world is one thread
        // at a time, under its lock.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        let offset = self.offset_in(from);
        self.note(What::Fetch, [u64::from(from.mr), offset, from.len, hash_bytes(&bytes)]);
        bytes
    }

    /// Copies bytes into admitted memory, now.
    pub(crate) fn store(&mut self, to: Admitted, bytes: &[u8]) {
        assert_eq!(to.len, bytes.len() as u64, "as many bytes as were admitted");
        let target = ptr::with_exposed_provenance_mut::<u8>(to.addr as usize);
        // SAFETY: as in `fetch`; `bytes` is private memory. What the device may write, nobody holds a reference to.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let offset = self.offset_in(to);
        self.note(What::Place, [u64::from(to.mr), offset, to.len, hash_bytes(bytes)]);
        if let Some(node) = self.mrs.get(to.mr).map(|mr| mr.node) {
            self.touched(node);
        }
    }

    /// Addresses differ from run to run; places in regions do not.
    fn offset_in(&self, place: Admitted) -> u64 {
        self.mrs.get(place.mr).map_or(0, |mr| place.addr - mr.addr)
    }

    /// Admits `len` bytes from `offset` of a scatter or gather list, piece by piece.
    pub(crate) fn admit_list(
        &self,
        (node, pd): (Node, u32),
        sges: &[Sge],
        (mut offset, mut len): (u64, u64),
        need: Access,
    ) -> Option<Vec<Admitted>> {
        let mut pieces = Vec::with_capacity(sges.len());
        for sge in sges {
            let has = u64::from(sge.length);
            if offset >= has {
                offset -= has;
                continue;
            }
            let take = (has - offset).min(len);
            if take > 0 {
                pieces.push(self.admit((node, pd), sge.lkey, (sge.addr.wrapping_add(offset), take), need)?);
            }
            (offset, len) = (0, len - take);
        }
        (len == 0).then_some(pieces)
    }

    pub(crate) fn fetch_list(&mut self, pieces: &[Admitted]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            bytes.extend(self.fetch(*piece));
        }
        bytes
    }

    pub(crate) fn store_list(&mut self, pieces: &[Admitted], bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces {
            let (now, later) = rest.split_at((piece.len as usize).min(rest.len()));
            self.store(Admitted { len: now.len() as u64, ..*piece }, now);
            rest = later;
        }
    }

    fn register(&mut self, node: Node, pd: u32, addr: u64, len: u64, access: Access) -> Result<(u32, u32)> {
        let limit = self.params.limits.mrs;
        let of_node = &mut self.nodes[node as usize];
        if of_node.keys.len() >= limit as usize {
            return Err(Error::Exhausted {
                operation: "reg_mr",
                what: "memory regions",
                limit: limit.into(),
                remedy: "deregister some, or register larger ones",
            });
        }
        let key = of_node.next_key;
        // Neighbours of a key are no keys.
        of_node.next_key = of_node.next_key.wrapping_add(0x0001_0301);
        let id = self.mrs.insert(Mr { node, pd, key, addr, len, access });
        self.nodes[node as usize].keys.insert(key, id);
        self.note(What::Create, [1, u64::from(id), u64::from(key), len]);
        Ok((id, key))
    }

    fn deregister(&mut self, id: u32) {
        // What was admitted lands first: deregistration waits for accesses under way.
        self.land_all_in(id);
        if let Some(mr) = self.mrs.remove(id) {
            self.nodes[mr.node as usize].keys.remove(&mr.key);
            self.note(What::Destroy, [1, u64::from(id), 0, 0]);
        }
    }
}

/// Zeroed pages of our own.
struct Pages {
    base: *mut u8,
    layout: Layout,
}

impl Pages {
    fn new(len_bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES).map_err(|_| {
            Error::invalid("alloc_mr", format!("{len_bytes} bytes are more than there can be"))
        })?;
        // SAFETY: the size is not zero: `alloc` refuses that.
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
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// A region as its owner has it.
pub(crate) struct SimMr {
    fabric: Arc<Fabric>,
    id: u32,
    key: u32,
    addr: *mut u8,
    len_bytes: usize,
    access: Access,
    /// Freed after the region is deregistered.
    _pages: Option<Pages>,
}

// SAFETY: the pointer is a number to everybody here; memory is touched under the world's lock, or by the owner.
unsafe impl Send for SimMr {}
// SAFETY: as above.
unsafe impl Sync for SimMr {}

impl SimMr {
    pub(crate) fn alloc(
        fabric: &Arc<Fabric>,
        (node, pd): (Node, u32),
        len: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_registration("alloc_mr", len)?;
        let len_bytes = len
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(|| Error::invalid("alloc_mr", format!("{len} bytes are more than there can be")))?;
        let pages = Pages::new(len_bytes)?;
        let addr = pages.base;
        let (id, key) = fabric.call().register(node, pd, addr as u64, len_bytes as u64, access)?;
        Ok(Self { fabric: fabric.clone(), id, key, addr, len_bytes, access, _pages: Some(pages) })
    }

    pub(crate) fn register(
        fabric: &Arc<Fabric>,
        (node, pd): (Node, u32),
        addr: *mut u8,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        access.check_registration("reg_mr", len_bytes)?;
        if (addr as u64).checked_add(len_bytes as u64).is_none() {
            return Err(Error::invalid("reg_mr", "the memory wraps around the end of the address space"));
        }
        if !may_access(addr as u64, len_bytes as u64, access.contains(Access::LOCAL_WRITE)) {
            let what = "the memory is not mapped, or not with the permissions asked for";
            return Err(Error::invalid("reg_mr", what));
        }
        addr.expose_provenance();
        let (id, key) = fabric.call().register(node, pd, addr as u64, len_bytes as u64, access)?;
        Ok(Self { fabric: fabric.clone(), id, key, addr, len_bytes, access, _pages: None })
    }
}

impl Drop for SimMr {
    fn drop(&mut self) {
        self.fabric.call().deregister(self.id);
    }
}

impl RawMr for SimMr {
    fn addr(&self) -> *mut u8 {
        self.addr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn access(&self) -> Access {
        self.access
    }

    fn dereg(self: Box<Self>) -> Revoked {
        Revoked::Now
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
