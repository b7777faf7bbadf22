//! Registered memory: the table of regions, their checks, and the only code with which simulated devices access memory.

use std::collections::BTreeMap;
use std::ptr;

use farcall_verbs::{Access, Error, Result, Sge};

use crate::arena::Arena;
use crate::packet::Node;
use crate::task::Scheduler;
use crate::timeline::Timeline;
use crate::trace::{RecordKind, hash_bytes};

/// Maximum length of a region in bytes.
pub(crate) const MAX_MR_BYTES: u64 = 1 << 40;

/// Start of the remote addresses of regions. No program has memory at such addresses.
const NAMES: u64 = 1 << 63;

/// Returns the remote address of a region's first byte. The program's own addresses differ from process to process; if
/// payload contained one, two runs of a seed would differ.
pub(crate) const fn remote_addr(id: u32) -> u64 {
    NAMES + id as u64 * MAX_MR_BYTES
}

/// The device's state of a region.
struct Mr {
    node: Node,
    pd: u32,
    key: u32,
    addr: u64,
    len: u64,
    access: Access,
}

impl Mr {
    fn holds(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr);
        addr >= self.addr && offset <= self.len && len <= self.len - offset
    }
}

/// Memory that passed a check. It remains valid until the next step of an endpoint, since regions are only deregistered
/// in such steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) mr: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// The regions of a node by key.
struct Keys {
    regions: BTreeMap<u32, u32>,
    next_key: u32,
}

/// The regions of all nodes.
#[derive(Default)]
pub(crate) struct Memory {
    regions: Arena<Mr>,
    nodes: Vec<Keys>,
}

impl Memory {
    pub(crate) fn add_node(&mut self, first_key: u32) {
        self.nodes.push(Keys { regions: BTreeMap::new(), next_key: first_key });
    }

    /// Returns the number of regions.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Checks whether a key of a node permits the access `need` to `len` bytes at `addr`, a local or remote address,
    /// within a protection domain.
    pub(crate) fn admit(
        &self,
        (node, pd): (Node, u32),
        key: u32,
        (addr, len): (u64, u64),
        need: Access,
    ) -> Option<Admitted> {
        let id = *self.nodes.get(node as usize)?.regions.get(&key)?;
        let mr = self.regions.get(id)?;
        let addr =
            if addr < NAMES { addr } else { addr.checked_sub(remote_addr(id))?.checked_add(mr.addr)? };
        let fits = mr.pd == pd && mr.access.contains(need) && mr.holds(addr, len);
        fits.then_some(Admitted { mr: id, addr, len })
    }

    /// Copies bytes out of admitted memory.
    pub(crate) fn fetch(&self, time: &mut Timeline, from: Admitted) -> Vec<u8> {
        let mut bytes = vec![0; from.len as usize];
        let source = ptr::with_exposed_provenance::<u8>(from.addr as usize);
        // SAFETY: `admit` found the bytes inside a registered region, and `ProtectionDomain::reg_mr` requires that the
        // region stays mapped until it is deregistered. No endpoint has run since, so it is still registered. No access
        // is concurrent: a world runs on one thread at a time, under its lock.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        let offset = self.offset_in(from);
        time.note(RecordKind::Fetch, [u64::from(from.mr), offset, from.len, hash_bytes(&bytes)]);
        bytes
    }

    /// Copies bytes into admitted memory immediately.
    pub(crate) fn store(&self, scheduler: &mut Scheduler, to: Admitted, bytes: &[u8]) {
        assert_eq!(to.len, bytes.len() as u64, "as many bytes as were admitted");
        let target = ptr::with_exposed_provenance_mut::<u8>(to.addr as usize);
        // SAFETY: `admit` found the bytes inside a registered region, which stays mapped until an endpoint deregisters
        // it, and no endpoint has run since. `bytes` does not overlap it, because no reference exists to memory that
        // the device may write (contract of `ProtectionDomain::reg_mr`).
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let offset = self.offset_in(to);
        scheduler.time.note(RecordKind::Place, [u64::from(to.mr), offset, to.len, hash_bytes(bytes)]);
        if let Some(node) = self.regions.get(to.mr).map(|mr| mr.node) {
            scheduler.memory_changed(node);
        }
    }

    /// Returns whether the region of admitted memory is still registered.
    pub(crate) fn contains(&self, place: Admitted) -> bool {
        self.regions.get(place.mr).is_some()
    }

    /// Returns the offset in the region, which is the same in every run, unlike the address.
    fn offset_in(&self, place: Admitted) -> u64 {
        self.regions.get(place.mr).map_or(0, |mr| place.addr - mr.addr)
    }

    /// Admits `len` bytes from `offset` of a scatter or gather list, element by element.
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

    pub(crate) fn fetch_list(&self, time: &mut Timeline, pieces: &[Admitted]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            bytes.extend(self.fetch(time, *piece));
        }
        bytes
    }

    pub(crate) fn store_list(&self, scheduler: &mut Scheduler, pieces: &[Admitted], bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces {
            let (now, later) = rest.split_at((piece.len as usize).min(rest.len()));
            self.store(scheduler, Admitted { len: now.len() as u64, ..*piece }, now);
            rest = later;
        }
    }

    /// Registers memory, unless the node has `limit` regions; returns the region's number and key.
    pub(crate) fn register(
        &mut self,
        time: &mut Timeline,
        (node, pd): (Node, u32),
        (addr, len): (u64, u64),
        access: Access,
        limit: u32,
    ) -> Result<(u32, u32)> {
        let keys = &mut self.nodes[node as usize];
        if keys.regions.len() >= limit as usize {
            return Err(Error::Exhausted {
                operation: "reg_mr",
                what: "memory regions",
                limit: limit.into(),
                remedy: "deregister some, or register larger ones",
            });
        }
        let key = keys.next_key;
        // Keys are not consecutive, so that a neighbouring number is not a valid key.
        keys.next_key = keys.next_key.wrapping_add(0x0001_0301);
        let id = self.regions.insert(Mr { node, pd, key, addr, len, access });
        keys.regions.insert(key, id);
        time.note(RecordKind::Create, [1, u64::from(id), u64::from(key), len]);
        Ok((id, key))
    }

    /// Removes a region, of which no chunk is scheduled for placement.
    pub(crate) fn deregister(&mut self, time: &mut Timeline, id: u32) {
        if let Some(mr) = self.regions.remove(id) {
            self.nodes[mr.node as usize].regions.remove(&mr.key);
            time.note(RecordKind::Destroy, [1, u64::from(id), 0, 0]);
        }
    }
}
