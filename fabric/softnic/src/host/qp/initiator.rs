//! The way to the peer's queue pair: its inbound segment, its completion queues' readiness, the regions it granted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use farcall_shm::ring::{ACCEPT, Layout, Producer, WANT};
use farcall_shm::{Segment, SharedMem, fence};
use farcall_verbs::{Error, Result};

use super::grants::Grants;
use super::owner_request::OwnerRequest;
use super::remote_cq::RemoteCq;
use super::shared_target::InFlight;
use super::way::Sought;
use super::{Accept, Connected, QpCore};
use crate::host::granted::{GrantedRegions, MappedRegion, PrivateRegion, Region, RegionId};
use crate::life::rendezvous::{ReplyBody, RequestBody};
use crate::life::{Answer, Interest, Peer};

/// Regions that a queue pair finds without asking its peer object.
const CACHED_REGIONS: usize = 4;

const NO_KEY: u64 = u64::MAX;

const fn cache_key(rkey: u32, receive: bool) -> u64 {
    rkey as u64 | (receive as u64) << 32
}

/// Where a queue pair keeps a region of the peer.
pub(crate) enum CachedRegion {
    /// Mapped here, for [`Initiator::cached`].
    Mapped(usize),
    /// Reached otherwise.
    Private(Arc<PrivateRegion>),
}

/// What executes a queue pair's requests, in memory that the target's process has granted. What every message does
/// comes first: see [`QpCore`].
#[repr(C)]
pub(crate) struct Initiator {
    pub(crate) peer: Arc<Peer>,
    pub(crate) producer: Producer,
    /// Messages sent that consumed a receive.
    pub(crate) sent: u64,
    /// Receives the target had posted when we last looked.
    pub(crate) posted_seen: u64,
    /// Where our messages are announced.
    pub(crate) doorbell: RemoteCq,
    pub(crate) layout: Layout,
    /// RC: the target may be waited for, and told of errors.
    pub(crate) is_reliable: bool,
    /// A WRITE since the last full fence: a READ must not overtake it (IBA 9.5: RC ordering).
    pub(crate) wrote: bool,
    /// Messages published since the target was last told, and whether one asked for a solicited event.
    pub(crate) unannounced: bool,
    pub(crate) solicited: bool,
    /// What the last WRITE, READ and atomic were granted: a protocol's two directions are two regions.
    pub(crate) write_grants: Option<Grants>,
    pub(crate) read_grants: Option<Grants>,
    pub(crate) change_grants: Option<Grants>,
    /// What a WRITE before was granted: a protocol's words may lie in another region than its bytes.
    pub(crate) earlier_write_grants: Option<Grants>,
    pub(crate) in_flight: InFlight,
    /// The oldest request, if the target's service thread executes it.
    pub(crate) owner_request: OwnerRequest,
    /// Our own number, which the target must expect.
    src_qpn: u32,
    pub(super) qpn: u32,
    pd: u32,
    /// Ours in the answers that we ask the peer for.
    pub(super) interest: Interest,
    /// What `regions` holds, by key: the key, and one bit more for regions of receives. `NO_KEY` if nothing.
    cached_keys: [u64; CACHED_REGIONS],
    regions: [Option<Arc<MappedRegion>>; CACHED_REGIONS],
    /// Which cached region is replaced next.
    victim: usize,
    /// Regions that are not mapped: what one of them costs does not depend on the search for it.
    private: Vec<(u64, Arc<PrivateRegion>)>,
    /// Our life, as told when we connected.
    pub(super) life: u32,
}

impl Initiator {
    /// Asks the peer for the way in. [`Answer::NotYet`]: ask again.
    ///
    /// # Errors
    /// If there is no such process, or what it granted cannot be used.
    pub(crate) fn connect(core: &QpCore, sought: &mut Sought) -> Result<Answer<Self>> {
        let process = &core.host.process;
        let dst_qpn = core.dest_qpn();
        let Some(peer) = process.peer_of(dst_qpn, &mut sought.meeting)? else { return Ok(Answer::NotYet) };
        let (instance, life) = (process.instance, core.life());
        // Where we shall wait for credit: the target may never connect to us by itself.
        let place = &core.send_slot;
        let (credit, mut fds) = place.cq.place(place.bit);
        if credit.event {
            fds.push(process.service.waker_fd());
        }
        let request = RequestBody::Connect {
            instance,
            src_qpn: core.qpn,
            life,
            dst_qpn,
            transport: core.transport as u32,
            credit,
        };
        let (body, fds) = match peer.ask(&sought.interest, request, &fds) {
            Answer::Granted(answer) => answer,
            Answer::NotYet => return Ok(Answer::NotYet),
            Answer::Refused(reason) => return Ok(Answer::Refused(reason)),
        };
        let interest = sought.interest.clone();
        Self::from_grant(peer, core, life, interest, &body, fds).map(Answer::Granted).ok_or_else(|| {
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
        life: u32,
        interest: Interest,
        body: &ReplyBody,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let ReplyBody::Connect { pd, ring, recv } = *body else {
            return None;
        };
        let mut fds = fds.into_iter();
        let (mem, layout) = map_ring(&fds.next()?, ring)?;
        if layout.shared {
            // There every message waits for its acceptance.
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
            owner_request: OwnerRequest::default(),
            interest,
            qpn: core.dest_qpn(),
            pd,
            src_qpn: core.qpn,
            cached_keys: [NO_KEY; CACHED_REGIONS],
            regions: [const { None }; CACHED_REGIONS],
            victim: 0,
            private: Vec::new(),
            life,
            peer,
        })
    }

    pub(crate) fn inbound(&self) -> &SharedMem {
        self.producer.memory()
    }

    /// What the target accepts from us now; `None`: nothing. Only meaningful inside a hazard.
    #[inline]
    pub(crate) fn accepts(&self) -> Option<Accept> {
        let accept = Accept::from_word(self.inbound().load(ACCEPT, Acquire));
        (accept.is_open() && accept.src_qpn() == self.src_qpn).then_some(accept)
    }

    /// The mapped region of a key; an index for [`Initiator::cached`].
    #[inline]
    pub(crate) fn find_region(&mut self, rkey: u32, receive: bool) -> Answer<CachedRegion> {
        let key = cache_key(rkey, receive);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            return Answer::Granted(CachedRegion::Mapped(at));
        }
        self.map_region(rkey, receive)
    }

    #[cold]
    fn map_region(&mut self, rkey: u32, receive: bool) -> Answer<CachedRegion> {
        let key = cache_key(rkey, receive);
        if let Some((_, region)) = self.private.iter().find(|(known, _)| *known == key) {
            return Answer::Granted(CachedRegion::Private(region.clone()));
        }
        match GrantedRegions::region(
            &self.peer,
            &self.interest,
            self.qpn,
            RegionId { pd: self.pd, rkey, receive },
        ) {
            Answer::Granted(Region::Mapped(region)) => {
                let at = self.victim;
                self.victim = (at + 1) % CACHED_REGIONS;
                self.cached_keys[at] = key;
                self.regions[at] = Some(region);
                Answer::Granted(CachedRegion::Mapped(at))
            }
            Answer::Granted(Region::Private(region)) => {
                if self.private.len() >= CACHED_REGIONS {
                    self.private.remove(0);
                }
                self.private.push((key, region.clone()));
                Answer::Granted(CachedRegion::Private(region))
            }
            Answer::Refused(reason) => Answer::Refused(reason),
            Answer::NotYet => Answer::NotYet,
        }
    }

    #[inline]
    pub(crate) fn cached(&self, at: usize) -> &Arc<MappedRegion> {
        self.regions[at].as_ref().expect("find_region returned it")
    }

    /// Forgets a region that its owner has deregistered.
    #[cold]
    pub(crate) fn forget(&mut self, at: usize) {
        self.cached_keys[at] = NO_KEY;
        self.regions[at] = None;
    }

    /// As [`Initiator::forget`], for a region that is not mapped, or only a part of it.
    pub(crate) fn forget_private(&mut self, region: &Arc<PrivateRegion>) {
        self.private.retain(|(_, known)| !Arc::ptr_eq(known, region));
        let is_part =
            |part: &MappedRegion| part.whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, region));
        if let Some(at) = self.regions.iter().position(|kept| kept.as_deref().is_some_and(is_part)) {
            self.forget(at);
        }
    }

    /// Forgets what is kept of a key for the placing of receives.
    pub(crate) fn forget_receive(&mut self, rkey: u32) {
        let key = cache_key(rkey, true);
        self.private.retain(|(known, _)| *known != key);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            self.forget(at);
        }
    }
}

/// A segment with a ring that a peer has granted; `None` if it is none of this version.
pub(crate) fn map_ring(fd: &OwnedFd, (offset, len_bytes): (u64, u64)) -> Option<(SharedMem, Layout)> {
    let len_bytes = usize::try_from(len_bytes).ok()?;
    let mem = SharedMem::new(Segment::map_foreign(fd.as_fd(), offset, len_bytes, true).ok()?);
    let layout = Layout::read_header(&mem).ok()?;
    Some((mem, layout))
}
