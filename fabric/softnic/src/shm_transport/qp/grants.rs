//! Grants of a queue pair's last one-sided request, in a form that the next request is compared with.
//!
//! Most requests name the same region and the same local buffer as the request before. Deriving the permissions again
//! is most of the cost of a small WRITE; here it takes a few comparisons. Revocation is still honoured: the words that
//! revoke a grant are read every time, inside the hazard, as on the general path.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use farcall_shm::ring::{ACCEPT, HAZARD};
use farcall_shm::{SharedMem, SharedWord, hazard};
use farcall_verbs::{ATOMIC_BYTES, Access, MAX_MESSAGE_BYTES, RdmaTarget, SendFlags, SendWr, Sge};

use super::Accept;
use super::transfer::{change_word, gather, scatter, scatter_bytes};
use crate::process::Peer;
use crate::process::regions::LocalRegion;
use crate::shm_transport::granted::MappedRegion;

pub(crate) struct Grants {
    rkey: u32,
    /// Local region and its key; `None` if only inline requests are covered.
    local: Option<(u32, LocalRegion)>,
    remote_addr: u64,
    remote_len_bytes: u64,
    here: *mut u8,
    may_write: bool,
    may_read: bool,
    may_change: bool,
    hazard: SharedWord,
    accept: SharedWord,
    accept_word: u64,
    generation_word: SharedWord,
    generation: u64,
    peer: Arc<Peer>,
    _region: Arc<MappedRegion>,
}

// SAFETY: `here` points into the mapping that `_region` keeps alive. It is only accessed by copies whose range
// `one_sided` checks.
unsafe impl Send for Grants {}

impl Grants {
    /// Returns the grants of a queue pair for a region of `peer`, combined with the permissions of the local region.
    /// `inbound` is the target's inbound segment.
    pub(crate) fn of(
        peer: &Arc<Peer>,
        inbound: &SharedMem,
        src_qpn: u32,
        region: Arc<MappedRegion>,
        local: Option<(u32, LocalRegion)>,
    ) -> Option<Self> {
        let accept = inbound.word_at(ACCEPT);
        let accept_word = accept.load(Acquire);
        let allowed = Accept::read(inbound, src_qpn)?.access() & region.access;
        let (remote_addr, remote_len_bytes, here) = region.bounds();
        let (generation_word, generation) = region.generation_word(peer);
        (Accept::from_word(accept_word) == Accept::read(inbound, src_qpn)?).then(|| Self {
            rkey: region.rkey,
            local,
            remote_addr,
            remote_len_bytes,
            here,
            may_write: allowed.contains(Access::REMOTE_WRITE),
            may_read: allowed.contains(Access::REMOTE_READ),
            may_change: allowed.contains(Access::REMOTE_ATOMIC),
            hazard: inbound.word_at(HAZARD),
            accept,
            accept_word,
            generation_word,
            generation,
            peer: peer.clone(),
            _region: region,
        })
    }

    /// Returns whether requests with these keys are covered already.
    pub(crate) fn covers(&self, rkey: u32, lkey: Option<u32>) -> bool {
        self.rkey == rkey
            && self.accept.load(Acquire) == self.accept_word
            && self.generation_word.load(Acquire) == self.generation
            && lkey.is_none_or(|lkey| {
                let is_it = |(key, local): &(u32, LocalRegion)| {
                    *key == lkey && local.word.load(Acquire) == local.generation
                };
                self.local.as_ref().is_some_and(is_it)
            })
    }

    /// Returns whether the local element may be used according to these grants.
    #[inline]
    fn allows(&self, sge: &Sge, flags: SendFlags, need: Access) -> bool {
        if flags.contains(SendFlags::INLINE) {
            return true;
        }
        let Some((lkey, local)) = &self.local else { return false };
        let offset = sge.addr.wrapping_sub(local.addr);
        *lkey == sge.lkey
            && offset <= local.len_bytes
            && u64::from(sge.length) <= local.len_bytes - offset
            && local.access.contains(need)
            && local.word.load(Acquire) == local.generation
    }

    /// Calls `access` with the local address of `len_bytes` bytes at `remote_addr`, if the grants cover the access.
    #[inline]
    fn one_sided(&self, rkey: u32, remote_addr: u64, len_bytes: u32, access: impl FnOnce(*mut u8)) -> bool {
        let offset = remote_addr.wrapping_sub(self.remote_addr);
        let len_bytes = u64::from(len_bytes);
        let covered = rkey == self.rkey
            && offset <= self.remote_len_bytes
            && len_bytes <= self.remote_len_bytes - offset
            && (1..=MAX_MESSAGE_BYTES).contains(&len_bytes)
            && !self.peer.liveness.is_known_exited();
        if !covered {
            return false;
        }
        hazard::enter_word(&self.hazard, hazard::of_region(self.rkey));
        let current = self.accept.load(Acquire) == self.accept_word
            && self.generation_word.load(Acquire) == self.generation;
        if current {
            // SAFETY: the checks above found `offset` and `len_bytes` inside the region, and `_region` keeps its
            // mapping alive.
            access(unsafe { self.here.add(offset as usize) });
        }
        self.hazard.store(0, Release);
        current
    }

    /// Executes a WRITE of one element, if the grants cover it.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(crate) unsafe fn write(&self, wr: &SendWr<'_>, sge: &Sge) -> bool {
        let RdmaTarget { remote_addr, rkey } = wr.rdma();
        // SAFETY: `one_sided` passes an address with `sge.length` valid bytes in registered memory, to which no
        // reference exists by the contract of `reg_mr`. By the contract of this function the element is readable.
        let access = |place: *mut u8| unsafe { gather(place, std::slice::from_ref(sge)) };
        self.may_write
            && self.allows(sge, wr.send_flags, Access::empty())
            && self.one_sided(rkey, remote_addr, sge.length, access)
    }

    /// Executes a READ of one element, if the grants cover it.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(crate) unsafe fn read(&self, wr: &SendWr<'_>, sge: &Sge) -> bool {
        let RdmaTarget { remote_addr, rkey } = wr.rdma();
        // SAFETY: `one_sided` passes an address with `sge.length` valid bytes. By the contract of this function the
        // element is writable and unreferenced.
        let access = |place: *mut u8| unsafe { scatter(place, std::slice::from_ref(sge)) };
        self.may_read
            && self.allows(sge, wr.send_flags, Access::LOCAL_WRITE)
            && self.one_sided(rkey, remote_addr, sge.length, access)
    }

    /// Executes CAS or FAA with a result of one element, if the grants cover it.
    ///
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    #[inline]
    pub(crate) unsafe fn change(&self, wr: &SendWr<'_>, sge: &Sge) -> bool {
        let operands = wr.atomic_target();
        let mut old = None;
        // SAFETY: `one_sided` passes an address with `ATOMIC_BYTES` valid bytes in registered memory, to which no
        // reference exists by the contract of `reg_mr`.
        let access = |place| old = unsafe { change_word(place, wr.opcode, &operands) };
        let is_done = self.may_change
            && u64::from(sge.length) == ATOMIC_BYTES
            && self.allows(sge, wr.send_flags, Access::LOCAL_WRITE)
            && self.one_sided(operands.rkey, operands.remote_addr, sge.length, access);
        let Some(old) = old.filter(|_| is_done) else { return false };
        // SAFETY: by the contract of this function the element is writable; its length was compared with
        // `ATOMIC_BYTES`.
        unsafe { scatter_bytes(&old.to_ne_bytes(), std::slice::from_ref(sge)) };
        true
    }
}
