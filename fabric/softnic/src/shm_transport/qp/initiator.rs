//! Connection to the peer's queue pair: its inbound segment, its completion queues' readiness, and the regions it
//! granted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use farcall_shm::ring::{Layout, Producer, WANT};
use farcall_shm::{Segment, SharedMem, fence};
use farcall_verbs::{Error, Result};

use super::grants::Grants;
use super::in_flight::InFlight;
use super::proxied_request::{AccessTarget, ProxiedRequest};
use super::remote_cq::RemoteCq;
use super::{Accept, Connected, QpCore};
use crate::process::regions::LocalRegion;
use crate::process::rendezvous::{ReplyBody, RequestBody};
use crate::process::{Peer, PeerHandshake, PeerReply, ReplyInterest};
use crate::shm_transport::granted::{GrantedRegions, MappedRegion, Region, RegionId, UnmappedRegion};

/// Number of regions that a queue pair finds without a lookup in its [`Peer`].
const CACHED_REGIONS: usize = 4;

const NO_KEY: u64 = u64::MAX;

const fn cache_key(rkey: u32, receive: bool) -> u64 {
    rkey as u64 | (receive as u64) << 32
}

/// Result of a lookup of a peer's region.
pub(crate) enum CachedRegion {
    /// Mapped; index for [`Initiator::cached`].
    Mapped(usize),
    /// Not mapped.
    Unmapped(Arc<UnmappedRegion>),
}

/// State of a connection attempt.
#[derive(Default)]
pub(crate) struct ConnectAttempt {
    /// Handshake with the target's process; `None` once it has completed.
    pub(super) handshake: Option<Arc<PeerHandshake>>,
    pub(super) interest: ReplyInterest,
}

/// Executes a queue pair's requests in memory that the target's process has granted. The fields that every message uses
/// come first: see [`super::QueuePair`].
#[repr(C)]
pub(crate) struct Initiator {
    pub(crate) peer: Arc<Peer>,
    pub(crate) producer: Producer,
    /// Number of messages sent that consumed a receive.
    pub(crate) sent: u64,
    /// Number of receives that the target had posted when it was last read.
    pub(crate) posted_seen: u64,
    /// Completion queue at which messages are announced.
    pub(crate) doorbell: RemoteCq,
    pub(crate) layout: Layout,
    /// `true` for RC: requests may wait for the target, and the target is notified of errors.
    pub(crate) is_reliable: bool,
    /// `true` if a WRITE was executed since the last full fence. A READ must not overtake it (IBA 9.5: RC ordering).
    pub(crate) wrote: bool,
    /// `unannounced`: messages were published since the last announcement; `solicited`: one of them requests a
    /// solicited event.
    pub(crate) unannounced: bool,
    pub(crate) solicited: bool,
    /// Grants of the last WRITE, READ and atomic. A protocol usually uses one region for each direction.
    pub(crate) write_grants: Option<Grants>,
    pub(crate) read_grants: Option<Grants>,
    pub(crate) change_grants: Option<Grants>,
    /// Grants of an earlier WRITE: a protocol may write its control words to a region other than that of its data.
    pub(crate) earlier_write_grants: Option<Grants>,
    pub(crate) in_flight: InFlight,
    /// State of the oldest request if the target's service thread executes it.
    pub(crate) proxied_request: ProxiedRequest,
    /// This queue pair's number, which the target must expect.
    src_qpn: u32,
    pub(super) qpn: u32,
    pd: u32,
    /// Interest in the peer's replies to this queue pair's requests.
    pub(super) interest: ReplyInterest,
    /// Keys of `regions`: the key, and one more bit for regions of receives. `NO_KEY` if the entry is empty.
    cached_keys: [u64; CACHED_REGIONS],
    regions: [Option<Arc<MappedRegion>>; CACHED_REGIONS],
    /// Index of the cached region that is replaced next.
    victim: usize,
    /// Regions that are not mapped. The cost of an access to them is much higher than that of the search.
    unmapped: Vec<(u64, Arc<UnmappedRegion>)>,
    /// Incarnation of this queue pair, as sent in the connect request.
    pub(super) incarnation: u32,
}

impl Initiator {
    /// Requests access from the peer. [`PeerReply::Pending`] means that the caller must try again.
    ///
    /// # Errors
    /// Returns an error if there is no such process, or if its grant cannot be used.
    pub(crate) fn connect(core: &QpCore, attempt: &mut ConnectAttempt) -> Result<PeerReply<Self>> {
        let process = &core.shm.process;
        let dst_qpn = core.dest_qpn();
        let Some(peer) = process.peer_of(dst_qpn, &mut attempt.handshake)? else {
            return Ok(PeerReply::Pending);
        };
        let (instance, incarnation) = (process.instance, core.incarnation());
        // Location at which the initiator waits for credit. It is included because the target may never connect to this
        // process itself.
        let place = &core.send_slot;
        let (credit, mut fds) = place.cq.location(place.bit);
        if credit.event {
            fds.push(process.service.waker_fd());
        }
        let request = RequestBody::Connect {
            instance,
            src_qpn: core.qpn,
            incarnation,
            dst_qpn,
            transport: core.transport as u32,
            credit,
        };
        let (body, fds) = match peer.request(&attempt.interest, request, &fds) {
            PeerReply::Granted(answer) => answer,
            PeerReply::Pending => return Ok(PeerReply::Pending),
            PeerReply::Refused(reason) => return Ok(PeerReply::Refused(reason)),
        };
        let interest = attempt.interest.clone();
        Self::from_grant(peer, core, incarnation, interest, &body, fds).map(PeerReply::Granted).ok_or_else(|| {
            let what = "it granted something that is no queue pair of this version, or this process has no \
                        descriptors left for it (ulimit -n)";
            Error::Peer {
                operation: "connect a queue pair",
                peer: format!("queue pair {dst_qpn:#x}"),
                what: what.into(),
            }
        })
    }

    fn from_grant(
        peer: Arc<Peer>,
        core: &QpCore,
        incarnation: u32,
        interest: ReplyInterest,
        body: &ReplyBody,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let ReplyBody::Connect { pd, ring, recv } = *body else {
            return None;
        };
        let mut fds = fds.into_iter();
        let (mem, layout) = map_ring(&fds.next()?, ring)?;
        if layout.shared {
            // Such a target must accept every message, so the sender always waits for credit.
            mem.store(WANT, 1, Relaxed);
            fence::heavy();
        }
        Some(Self {
            doorbell: RemoteCq::from_fds(recv, &mut fds)?,
            producer: Producer::new(mem, &layout),
            layout,
            sent: 0,
            posted_seen: 0,
            is_reliable: core.transport == Connected::Reliable,
            wrote: false,
            unannounced: false,
            solicited: false,
            write_grants: None,
            read_grants: None,
            change_grants: None,
            earlier_write_grants: None,
            in_flight: InFlight::default(),
            proxied_request: ProxiedRequest::default(),
            interest,
            qpn: core.dest_qpn(),
            pd,
            src_qpn: core.qpn,
            cached_keys: [NO_KEY; CACHED_REGIONS],
            regions: [const { None }; CACHED_REGIONS],
            victim: 0,
            unmapped: Vec::new(),
            incarnation,
            peer,
        })
    }

    pub(crate) fn inbound(&self) -> &SharedMem {
        self.producer.memory()
    }

    /// Returns what the target accepts from this queue pair now; `None` if it accepts nothing. Only meaningful while a
    /// hazard is published.
    #[inline]
    pub(crate) fn accepts(&self) -> Option<Accept> {
        Accept::read(self.inbound(), self.src_qpn)
    }

    /// Returns the grants for the cached region `at`, combined with the permissions of the local region.
    pub(super) fn grants_for(&self, at: usize, local: Option<(u32, LocalRegion)>) -> Option<Grants> {
        Grants::of(&self.peer, self.inbound(), self.src_qpn, self.cached(at).clone(), local)
    }

    /// Abandons the oldest request. A late reply is not taken for that of a later request.
    pub(crate) fn abandon(&mut self) {
        self.interest = ReplyInterest::default();
        self.proxied_request.abandon();
    }

    /// Returns the state of a request that the target's process executes, and its destination.
    pub(super) fn proxied_target(&mut self) -> (&mut ProxiedRequest, AccessTarget<'_>) {
        let (dst_qpn, incarnation) = (self.qpn, self.incarnation);
        let at = AccessTarget { peer: &self.peer, interest: &self.interest, dst_qpn, incarnation };
        (&mut self.proxied_request, at)
    }

    /// Looks up the region of a key.
    #[inline]
    pub(crate) fn find_region(&mut self, rkey: u32, receive: bool) -> PeerReply<CachedRegion> {
        let key = cache_key(rkey, receive);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            return PeerReply::Granted(CachedRegion::Mapped(at));
        }
        self.map_region(rkey, receive)
    }

    #[cold]
    fn map_region(&mut self, rkey: u32, receive: bool) -> PeerReply<CachedRegion> {
        let key = cache_key(rkey, receive);
        if let Some((_, region)) = self.unmapped.iter().find(|(known, _)| *known == key) {
            return PeerReply::Granted(CachedRegion::Unmapped(region.clone()));
        }
        match GrantedRegions::region(
            &self.peer,
            &self.interest,
            self.qpn,
            RegionId { pd: self.pd, rkey, receive },
        ) {
            PeerReply::Granted(Region::Mapped(region)) => {
                let at = self.victim;
                self.victim = (at + 1) % CACHED_REGIONS;
                self.cached_keys[at] = key;
                self.regions[at] = Some(region);
                PeerReply::Granted(CachedRegion::Mapped(at))
            }
            PeerReply::Granted(Region::Unmapped(region)) => {
                if self.unmapped.len() >= CACHED_REGIONS {
                    self.unmapped.remove(0);
                }
                self.unmapped.push((key, region.clone()));
                PeerReply::Granted(CachedRegion::Unmapped(region))
            }
            PeerReply::Refused(reason) => PeerReply::Refused(reason),
            PeerReply::Pending => PeerReply::Pending,
        }
    }

    #[inline]
    pub(crate) fn cached(&self, at: usize) -> &Arc<MappedRegion> {
        self.regions[at].as_ref().expect("find_region returned it")
    }

    /// Removes a region that its owner has deregistered.
    #[cold]
    pub(crate) fn forget(&mut self, at: usize) {
        self.cached_keys[at] = NO_KEY;
        self.regions[at] = None;
    }

    /// Removes a region that is not mapped, or only partly mapped.
    pub(crate) fn forget_unmapped(&mut self, region: &Arc<UnmappedRegion>) {
        self.unmapped.retain(|(_, known)| !Arc::ptr_eq(known, region));
        let is_part =
            |part: &MappedRegion| part.whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, region));
        if let Some(at) = self.regions.iter().position(|cached| cached.as_deref().is_some_and(is_part)) {
            self.forget(at);
        }
    }

    /// Removes the region of a key that was granted for receives.
    pub(crate) fn forget_receive(&mut self, rkey: u32) {
        let key = cache_key(rkey, true);
        self.unmapped.retain(|(known, _)| *known != key);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            self.forget(at);
        }
    }
}

/// Maps a segment with a ring that a peer has granted; `None` if it is not of this version.
pub(crate) fn map_ring(fd: &OwnedFd, (offset, len_bytes): (u64, u64)) -> Option<(SharedMem, Layout)> {
    let len_bytes = usize::try_from(len_bytes).ok()?;
    let mem = SharedMem::new(Segment::map_peer_segment(fd.as_fd(), offset, len_bytes, true).ok()?);
    let layout = Layout::read_header(&mem).ok()?;
    Some((mem, layout))
}
