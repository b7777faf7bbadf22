//! Regions that a peer has granted to us, and how each is reached.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use farcall_shm::{AddressSpace, Mapping, Mutex, Segment, SharedWord};
use farcall_verbs::Access;

use crate::life::rendezvous::{Kinship, Reach, Refusal, RegionGrant, ReplyBody, RequestBody};
use crate::life::{Answer, Interest, Peer, regions};

/// A region of the peer, mapped here.
pub(crate) struct MappedRegion {
    pub(crate) rkey: u32,
    pub(crate) access: Access,
    addr: u64,
    len_bytes: u64,
    generation: u32,
    mapping: Arc<Mapping>,
    /// The whole of which this is the part that can be mapped; `None` if it is all.
    pub(crate) whole: Option<Arc<PrivateRegion>>,
}

impl MappedRegion {
    /// Where `len_bytes` at the peer's address `addr` are here; `None` if they are not inside the region.
    #[inline]
    pub(crate) fn locate(&self, addr: u64, len_bytes: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        if offset > self.len_bytes || len_bytes > self.len_bytes - offset {
            return None;
        }
        // SAFETY: `map` checked that the mapping covers the region, and the range is inside the region.
        Some(unsafe { self.mapping.base().add(offset as usize) })
    }

    /// Its address at the peer, its length, and where it is here.
    pub(crate) fn extent(&self) -> (u64, u64, *mut u8) {
        (self.addr, self.len_bytes, self.mapping.base())
    }

    /// The word at the peer that equals the returned number while the region is live.
    pub(crate) fn generation_word(&self, peer: &Peer) -> (SharedWord, u64) {
        (regions::generation_word(&peer.generations, self.rkey), self.generation.into())
    }

    /// Whether the peer has not deregistered it. Only meaningful inside a hazard.
    #[inline]
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        regions::is_current(&peer.generations, self.rkey, self.generation)
    }
}

/// A region of the peer that cannot be mapped: its heap, its stacks, its files.
pub(crate) struct PrivateRegion {
    pub(crate) rkey: u32,
    pub(crate) access: Access,
    addr: u64,
    /// The address of its first byte in the peer's address space.
    memory_addr: u64,
    len_bytes: u64,
    generation: u32,
    /// Through which it is reached; `None`: only by its owner.
    pub(crate) space: Option<Arc<AddressSpace>>,
}

impl PrivateRegion {
    /// Returns the address in the peer's address space of what its requests name `addr`, inside of the region.
    pub(crate) fn memory_at(&self, addr: u64) -> u64 {
        self.memory_addr.wrapping_add(addr.wrapping_sub(self.addr))
    }

    /// Whether `len_bytes` at the peer's address `addr` are inside.
    pub(crate) fn contains(&self, addr: u64, len_bytes: u64) -> bool {
        addr.checked_sub(self.addr)
            .is_some_and(|offset| offset <= self.len_bytes && len_bytes <= self.len_bytes - offset)
    }

    /// Whether the peer has not deregistered it. Only meaningful inside a hazard.
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        regions::is_current(&peer.generations, self.rkey, self.generation)
    }
}

/// A region of the peer.
#[derive(Clone)]
pub(crate) enum Region {
    Mapped(Arc<MappedRegion>),
    Private(Arc<PrivateRegion>),
}

impl Region {
    /// Bytes of our address space.
    fn mapped_bytes(&self) -> u64 {
        match self {
            Self::Mapped(region) => region.len_bytes,
            Self::Private(_) => 0,
        }
    }

    /// Whether the peer has not deregistered it. Only meaningful inside a hazard.
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        match self {
            Self::Mapped(region) => region.is_current(peer),
            Self::Private(region) => region.is_current(peer),
        }
    }
}

/// What a region is known by: its key through which domain, and whether it was granted to place receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RegionId {
    pub(crate) pd: u32,
    pub(crate) rkey: u32,
    pub(crate) receive: bool,
}

/// Regions of one peer that are kept mapped, and their bytes: beyond, one that was used before is given up, and asked
/// for again when it is used again.
const MAX_KEPT_REGIONS: usize = 4096;
const MAX_KEPT_BYTES: u64 = 1 << 42;

/// What one peer has granted to us.
#[derive(Default)]
pub(crate) struct GrantedRegions {
    regions: Mutex<HashMap<RegionId, Region>>,
    /// Its address space, read-only and writable, once granted: one descriptor of each kind is enough for all regions.
    spaces: [OnceLock<Arc<AddressSpace>>; 2],
}

impl GrantedRegions {
    /// A region as seen through the peer's queue pair `qpn`.
    pub(crate) fn region(peer: &Peer, interest: &Interest, qpn: u32, id: RegionId) -> Answer<Region> {
        if !regions::is_plausible(id.rkey) {
            return Answer::Refused(Refusal::UnknownKey);
        }
        let granted = peer.kept::<Self>();
        let known = granted.regions.lock().get(&id).cloned();
        if let Some(region) = known.filter(|region| region.is_current(peer)) {
            return Answer::Granted(region);
        }
        let body = RequestBody::MapRegion { dst_qpn: qpn, rkey: id.rkey, receive: id.receive };
        let accepted = match peer.ask(interest, body, &[]) {
            Answer::Granted((ReplyBody::MapRegion(grant), fds)) => {
                granted.accept(peer.kinship, id, &grant, fds)
            }
            Answer::Granted(_) => None,
            Answer::Refused(reason) => return Answer::Refused(reason),
            Answer::NotYet => return Answer::NotYet,
        };
        let Some(region) = accepted else { return Answer::Refused(Refusal::Malformed) };
        let mut regions = granted.regions.lock();
        regions.retain(|_, region| region.is_current(peer));
        make_room(&mut regions, region.mapped_bytes());
        regions.insert(id, region.clone());
        Answer::Granted(region)
    }

    fn accept(
        &self,
        kinship: Kinship,
        id: RegionId,
        grant: &RegionGrant,
        mut fds: Vec<OwnedFd>,
    ) -> Option<Region> {
        let RegionGrant { addr, memory_addr, len_bytes, generation, reach, .. } = *grant;
        let access = Access::from_bits(grant.access)?;
        let space = match reach {
            Reach::Mapped => return map(id, grant, &fds, None).map(Arc::new).map(Region::Mapped),
            // Who may not have ours does not give us his.
            Reach::AddressSpace | Reach::Partly if kinship != Kinship::SameUser => return None,
            Reach::AddressSpace | Reach::Partly => Some(self.accept_space(id, access, fds.pop())?),
            Reach::Owner => None,
        };
        addr.checked_add(len_bytes)?;
        memory_addr.checked_add(len_bytes)?;
        let rkey = id.rkey;
        let whole = Arc::new(PrivateRegion { rkey, access, addr, memory_addr, len_bytes, generation, space });
        if reach == Reach::Partly {
            return map(id, grant, &fds, Some(whole)).map(Arc::new).map(Region::Mapped);
        }
        Some(Region::Private(whole))
    }

    fn accept_space(&self, id: RegionId, access: Access, fd: Option<OwnedFd>) -> Option<Arc<AddressSpace>> {
        let slot = &self.spaces[usize::from(id.receive || access.intersects(Access::REMOTE_WRITE))];
        if let Some(space) = slot.get() {
            return Some(space.clone());
        }
        let space = Arc::new(AddressSpace::foreign(fd?)?);
        Some(slot.get_or_init(|| space).clone())
    }
}

/// Gives up regions until `len_bytes` more are within the limits.
fn make_room(regions: &mut HashMap<RegionId, Region>, len_bytes: u64) {
    while regions.len() >= MAX_KEPT_REGIONS
        || regions.values().map(Region::mapped_bytes).fold(len_bytes, u64::saturating_add) > MAX_KEPT_BYTES
    {
        let Some(victim) = regions.keys().next().copied() else { return };
        regions.remove(&victim);
    }
}

fn map(
    id: RegionId,
    grant: &RegionGrant,
    fds: &[OwnedFd],
    whole: Option<Arc<PrivateRegion>>,
) -> Option<MappedRegion> {
    let (before, len_bytes) = (grant.mapped_offset, grant.mapped_len_bytes);
    let addr = grant.addr.checked_add(before)?;
    // What is mapped is the region, or inside of it.
    let is_inside = before <= grant.len_bytes && len_bytes <= grant.len_bytes - before;
    if !is_inside || (whole.is_none() && len_bytes != grant.len_bytes) {
        return None;
    }
    let access = Access::from_bits(grant.access)?;
    // What peers may only read is mapped read-only.
    let writable = id.receive || access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let len = usize::try_from(len_bytes).ok()?;
    addr.checked_add(len_bytes)?;
    let mapping = Segment::map_foreign(fds.first()?.as_fd(), grant.file_offset, len, writable).ok()?;
    let (rkey, generation) = (id.rkey, grant.generation);
    Some(MappedRegion { rkey, access, addr, len_bytes, generation, mapping, whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_peer_is_bounded() {
        let region = |rkey| {
            let extent = (0, 4096, 1, None);
            let (addr, len_bytes, generation, space) = extent;
            Region::Private(Arc::new(PrivateRegion {
                rkey,
                access: Access::empty(),
                addr,
                memory_addr: addr,
                len_bytes,
                generation,
                space,
            }))
        };
        let mut regions = HashMap::new();
        for rkey in 0..2 * MAX_KEPT_REGIONS as u32 {
            make_room(&mut regions, 0);
            regions.insert(RegionId { pd: 1, rkey, receive: false }, region(rkey));
        }
        assert_eq!(regions.len(), MAX_KEPT_REGIONS);
        make_room(&mut regions, MAX_KEPT_BYTES + 1);
        assert!(regions.is_empty(), "the newest alone is beyond");
    }
}
