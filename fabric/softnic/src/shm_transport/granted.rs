//! Regions that a peer has granted to this process, and the kinds of access to them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use farcall_shm::{AddressSpace, Mapping, Mutex, Segment, SharedWord};
use farcall_verbs::Access;

use crate::process::rendezvous::{Reach, Refusal, RegionGrant, ReplyBody, RequestBody, TrustLevel};
use crate::process::{Peer, PeerReply, ReplyInterest, regions};

/// A region of the peer that is mapped into this process.
pub(crate) struct MappedRegion {
    pub(crate) rkey: u32,
    pub(crate) access: Access,
    addr: u64,
    len_bytes: u64,
    generation: u32,
    mapping: Arc<Mapping>,
    /// The complete region if only a part of it can be mapped; `None` if all of it is mapped.
    pub(crate) whole: Option<Arc<UnmappedRegion>>,
}

impl MappedRegion {
    /// Returns the local address of `len_bytes` at the peer's address `addr`; `None` if they are not inside the mapped
    /// region.
    #[inline]
    pub(crate) fn locate(&self, addr: u64, len_bytes: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        if offset > self.len_bytes || len_bytes > self.len_bytes - offset {
            return None;
        }
        // SAFETY: `map` mapped `self.len_bytes` bytes, and the check above found `offset` at most `self.len_bytes`.
        // `self.mapping` stays mapped as long as `self` exists.
        Some(unsafe { self.mapping.base().add(offset as usize) })
    }

    /// Returns the address at the peer, the length in bytes and the local address.
    pub(crate) fn bounds(&self) -> (u64, u64, *mut u8) {
        (self.addr, self.len_bytes, self.mapping.base())
    }

    /// Returns the peer's generation word and the value that it holds while the region is registered.
    pub(crate) fn generation_word(&self, peer: &Peer) -> (SharedWord, u64) {
        (regions::generation_word(&peer.generations, self.rkey), self.generation.into())
    }

    /// Returns whether the peer has not deregistered the region. Only meaningful while a hazard is published.
    #[inline]
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        regions::is_current(&peer.generations, self.rkey, self.generation)
    }
}

/// A region of the peer that cannot be mapped: heap, stack or file memory.
pub(crate) struct UnmappedRegion {
    pub(crate) rkey: u32,
    pub(crate) access: Access,
    addr: u64,
    /// Address of the first byte in the peer's address space.
    memory_addr: u64,
    len_bytes: u64,
    generation: u32,
    /// Address space through which the region is accessed; `None` if only the peer's service thread can access it.
    pub(crate) space: Option<Arc<AddressSpace>>,
}

impl UnmappedRegion {
    /// Returns the address in the peer's address space that corresponds to the request address `addr` inside the
    /// region.
    pub(crate) fn memory_at(&self, addr: u64) -> u64 {
        self.memory_addr.wrapping_add(addr.wrapping_sub(self.addr))
    }

    /// Returns whether `len_bytes` at the peer's address `addr` are inside the region.
    pub(crate) fn contains(&self, addr: u64, len_bytes: u64) -> bool {
        addr.checked_sub(self.addr)
            .is_some_and(|offset| offset <= self.len_bytes && len_bytes <= self.len_bytes - offset)
    }

    /// Returns whether the peer has not deregistered the region. Only meaningful while a hazard is published.
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        regions::is_current(&peer.generations, self.rkey, self.generation)
    }
}

/// A region of the peer.
#[derive(Clone)]
pub(crate) enum Region {
    Mapped(Arc<MappedRegion>),
    Unmapped(Arc<UnmappedRegion>),
}

impl Region {
    /// Returns the number of bytes that the region occupies in this process's address space.
    fn mapped_bytes(&self) -> u64 {
        match self {
            Self::Mapped(region) => region.len_bytes,
            Self::Unmapped(_) => 0,
        }
    }

    /// Returns whether the peer has not deregistered the region. Only meaningful while a hazard is published.
    pub(crate) fn is_current(&self, peer: &Peer) -> bool {
        match self {
            Self::Mapped(region) => region.is_current(peer),
            Self::Unmapped(region) => region.is_current(peer),
        }
    }
}

/// Identity of a granted region: its key, the protection domain, and whether it was granted for receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RegionId {
    pub(crate) pd: u32,
    pub(crate) rkey: u32,
    pub(crate) receive: bool,
}

/// Maximum number and total bytes of mapped regions of one peer. Beyond these limits a region is unmapped, and
/// requested again at its next use.
const MAX_CACHED_REGIONS: usize = 4096;
const MAX_CACHED_BYTES: u64 = 1 << 42;

/// Regions and address space that one peer has granted to this process.
#[derive(Default)]
pub(crate) struct GrantedRegions {
    regions: Mutex<HashMap<RegionId, Region>>,
    /// The peer's address space, read-only and writable. One descriptor of each kind serves all regions.
    spaces: [OnceLock<Arc<AddressSpace>>; 2],
}

impl GrantedRegions {
    /// Returns a region as accessed through the peer's queue pair `qpn`; requests it if it is not cached.
    pub(crate) fn region(peer: &Peer, interest: &ReplyInterest, qpn: u32, id: RegionId) -> PeerReply<Region> {
        if !regions::is_plausible(id.rkey) {
            return PeerReply::Refused(Refusal::UnknownKey);
        }
        let granted = peer.transport_state::<Self>();
        let known = granted.regions.lock().get(&id).cloned();
        if let Some(region) = known.filter(|region| region.is_current(peer)) {
            return PeerReply::Granted(region);
        }
        let body = RequestBody::MapRegion { dst_qpn: qpn, rkey: id.rkey, receive: id.receive };
        let accepted = match peer.request(interest, body, &[]) {
            PeerReply::Granted((ReplyBody::MapRegion(grant), fds)) => {
                granted.accept(peer.trust_level, id, &grant, fds)
            }
            PeerReply::Granted(_) => None,
            PeerReply::Refused(reason) => return PeerReply::Refused(reason),
            PeerReply::Pending => return PeerReply::Pending,
        };
        let Some(region) = accepted else { return PeerReply::Refused(Refusal::Malformed) };
        let mut regions = granted.regions.lock();
        regions.retain(|_, region| region.is_current(peer));
        make_space(&mut regions, region.mapped_bytes());
        regions.insert(id, region.clone());
        PeerReply::Granted(region)
    }

    fn accept(
        &self,
        trust_level: TrustLevel,
        id: RegionId,
        grant: &RegionGrant,
        mut fds: Vec<OwnedFd>,
    ) -> Option<Region> {
        let RegionGrant { addr, memory_addr, len_bytes, generation, reach, .. } = *grant;
        let access = Access::from_bits(grant.access)?;
        let space = match reach {
            Reach::Mapped => return map(id, grant, &fds, None).map(Arc::new).map(Region::Mapped),
            // Both sides compute the same trust level, so a correct peer sends no address space that it would not
            // receive.
            Reach::AddressSpace | Reach::Partly if trust_level != TrustLevel::SameUser => return None,
            Reach::AddressSpace | Reach::Partly => Some(self.accept_space(id, access, fds.pop())?),
            Reach::Owner => None,
        };
        addr.checked_add(len_bytes)?;
        memory_addr.checked_add(len_bytes)?;
        let rkey = id.rkey;
        let whole =
            Arc::new(UnmappedRegion { rkey, access, addr, memory_addr, len_bytes, generation, space });
        if reach == Reach::Partly {
            return map(id, grant, &fds, Some(whole)).map(Arc::new).map(Region::Mapped);
        }
        Some(Region::Unmapped(whole))
    }

    fn accept_space(&self, id: RegionId, access: Access, fd: Option<OwnedFd>) -> Option<Arc<AddressSpace>> {
        let slot = &self.spaces[usize::from(id.receive || access.intersects(Access::REMOTE_WRITE))];
        if let Some(space) = slot.get() {
            return Some(space.clone());
        }
        let space = Arc::new(AddressSpace::from_peer(fd?)?);
        Some(slot.get_or_init(|| space).clone())
    }
}

/// Unmaps regions until `len_bytes` more are within the limits.
fn make_space(regions: &mut HashMap<RegionId, Region>, len_bytes: u64) {
    while regions.len() >= MAX_CACHED_REGIONS
        || regions.values().map(Region::mapped_bytes).fold(len_bytes, u64::saturating_add) > MAX_CACHED_BYTES
    {
        let Some(victim) = regions.keys().next().copied() else { return };
        regions.remove(&victim);
    }
}

fn map(
    id: RegionId,
    grant: &RegionGrant,
    fds: &[OwnedFd],
    whole: Option<Arc<UnmappedRegion>>,
) -> Option<MappedRegion> {
    let (before, len_bytes) = (grant.mapped_offset, grant.mapped_len_bytes);
    let addr = grant.addr.checked_add(before)?;
    // The mapped range must be all of the region, or lie inside it.
    let is_inside = before <= grant.len_bytes && len_bytes <= grant.len_bytes - before;
    if !is_inside || (whole.is_none() && len_bytes != grant.len_bytes) {
        return None;
    }
    let access = Access::from_bits(grant.access)?;
    // Memory that peers may only read is mapped read-only.
    let writable = id.receive || access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let len = usize::try_from(len_bytes).ok()?;
    addr.checked_add(len_bytes)?;
    let mapping = Segment::map_peer_segment(fds.first()?.as_fd(), grant.file_offset, len, writable).ok()?;
    let (rkey, generation) = (id.rkey, grant.generation);
    Some(MappedRegion { rkey, access, addr, len_bytes, generation, mapping, whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_peer_is_bounded() {
        let region = |rkey| {
            let bounds = (0, 4096, 1, None);
            let (addr, len_bytes, generation, space) = bounds;
            Region::Unmapped(Arc::new(UnmappedRegion {
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
        for rkey in 0..2 * MAX_CACHED_REGIONS as u32 {
            make_space(&mut regions, 0);
            regions.insert(RegionId { pd: 1, rkey, receive: false }, region(rkey));
        }
        assert_eq!(regions.len(), MAX_CACHED_REGIONS);
        make_space(&mut regions, MAX_CACHED_BYTES + 1);
        assert!(regions.is_empty(), "the newest alone is beyond");
    }
}
