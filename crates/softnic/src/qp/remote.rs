//! The way to the peer's queue pair: its inbound segment, its completion queues' readiness, the regions it granted.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farcall_verbs::{Error, Result};

use super::send::SendSide;
use super::{Accept, QpCore};
use crate::channel::Waker;
use crate::fence;
use crate::peer::{Asked, Interest, Peer, PrivateRegion, Region, RegionId, RemoteRegion};
use crate::process::Process;
use crate::readiness::{LEN_BYTES, MAX_BITS, Readiness};
use crate::rendezvous::{ReplyBody, RequestBody, refusal};
use crate::ring::{ACCEPT, Layout, Producer, WANT};
use crate::shared::{Segment, SharedMem};
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// Regions that a queue pair finds without asking its peer object.
const CACHED_REGIONS: usize = 4;

const NO_KEY: u64 = u64::MAX;

const fn cache_key(rkey: u32, receive: bool) -> u64 {
    rkey as u64 | (receive as u64) << 32
}

/// A completion queue of the peer: where our messages are announced, or where it waits for credit from us.
pub(crate) struct RemoteCq {
    readiness: Readiness,
    bit: u32,
    waker: Option<Waker>,
    /// Wakes the service thread of its process.
    service: Option<Waker>,
}

impl RemoteCq {
    /// Of the descriptors that came with a frame: readiness, then the event descriptor if there is one, and its service thread's.
    pub(crate) fn from_fds(bit: u32, event: bool, fds: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let fd = fds.next()?;
        let mapping = Segment::map_foreign(fd.as_fd(), 0, LEN_BYTES, true).ok()?;
        let readiness = Readiness::open(SharedMem::new(mapping))?;
        let waker = if event { Some(Waker::foreign(fds.next()?)) } else { None };
        let service = if event { fds.next().map(Waker::foreign) } else { None };
        ((bit as usize) < MAX_BITS).then_some(Self { readiness, bit, waker, service })
    }

    #[inline]
    pub(crate) fn announce(&self, solicited: bool) {
        self.readiness.announce(self.bit, solicited, || {
            if let Some(waker) = &self.waker {
                waker.wake();
            }
        });
    }

    /// Gives back what only [`Self::nudge`] needs.
    pub(crate) fn announce_only(&mut self) {
        self.service = None;
    }

    /// Has the other process go on with what the owner left, if that sleeps: no event for him.
    pub(crate) fn nudge(&self) {
        self.readiness.nudge(self.bit, || {
            if let Some(waker) = &self.service {
                waker.wake();
            }
        });
    }
}

/// Where a queue pair keeps a region of the peer.
pub(super) enum Kept {
    /// Mapped here, for [`Remote::cached`].
    Mapped(usize),
    /// Reached otherwise.
    Private(Arc<PrivateRegion>),
}

/// What an initiator needs of its target. What every message does comes first: see [`QpCore`].
#[repr(C)]
pub(super) struct Remote {
    pub(super) peer: Arc<Peer>,
    pub(super) producer: Producer,
    /// Messages sent that consumed a receive.
    pub(super) sent: u64,
    /// Receives the target had posted when we last looked.
    pub(super) posted_seen: u64,
    /// Where our messages are announced.
    pub(super) doorbell: RemoteCq,
    pub(super) layout: Layout,
    /// Our own number, which the target must expect.
    src_qpn: u32,
    qpn: u32,
    pd: u32,
    pub(super) interest: Interest,
    /// What `regions` holds, by key: the key, and one bit more for regions of receives. `NO_KEY` if nothing.
    cached_keys: [u64; CACHED_REGIONS],
    regions: [Option<Arc<RemoteRegion>>; CACHED_REGIONS],
    /// Which cached region is replaced next.
    victim: usize,
    /// Regions that are not mapped: what one of them costs does not depend on the search for it.
    private: Vec<(u64, Arc<PrivateRegion>)>,
    /// Our life, as told when we connected.
    life: u32,
}

impl Remote {
    /// Asks the peer for the way into the pair that `send` is connected to.
    pub(super) fn connect(process: &Process, core: &QpCore, send: &mut SendSide) -> Result<Asked<Self>> {
        let dst_qpn = send.dest_qpn;
        let Some(peer) = process.peer_of(dst_qpn, &mut send.meeting)? else { return Ok(Asked::NotYet) };
        let (instance, life) = (process.instance(), core.life());
        // Where we shall wait for credit: the target may never connect to us by itself.
        let place = core.send_place();
        let waker = place.cq.waker_fd();
        let request = RequestBody::Connect {
            instance,
            src_qpn: core.qpn(),
            life,
            dst_qpn,
            transport: core.transport() as u32,
            credit_bit: place.bit,
            credit_event: waker.is_some(),
        };
        let service = waker.map(|_| process.service.waker_fd());
        let fds: Vec<_> = std::iter::once(place.cq.segment_fd()).chain(waker).chain(service).collect();
        let (body, fds) = match peer.ask(&send.interest, request, &fds) {
            Asked::Granted(answer) => answer,
            Asked::NotYet => return Ok(Asked::NotYet),
            Asked::Refused(reason) => return Ok(Asked::Refused(reason)),
        };
        let remote =
            Self::from_grant(peer, (core.qpn(), life), send, &body, fds).ok_or_else(|| Error::Peer {
                operation: "connect a queue pair",
                peer: format!("queue pair {dst_qpn:#x}"),
                what: "it granted something that is no queue pair of this version, or this process has no \
                       descriptors left for it (ulimit -n)"
                    .into(),
            })?;
        Ok(Asked::Granted(remote))
    }

    fn from_grant(
        peer: Arc<Peer>,
        (src_qpn, life): (u32, u32),
        send: &SendSide,
        body: &ReplyBody,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let ReplyBody::Connect { pd, recv_bit, recv_event } = *body else {
            return None;
        };
        let mut fds = fds.into_iter();
        let inbound = fds.next()?;
        let size = rustix::fs::fstat(&inbound).ok()?.st_size;
        let mem =
            SharedMem::new(Segment::map_foreign(inbound.as_fd(), 0, usize::try_from(size).ok()?, true).ok()?);
        let layout = Layout::read_header(&mem).ok()?;
        if layout.shared {
            // There every message waits for its acceptance.
            mem.store(WANT, 1, Relaxed);
            fence::heavy();
        }
        Some(Self {
            doorbell: RemoteCq::from_fds(recv_bit, recv_event, &mut fds)?,
            producer: Producer::new(mem, &layout),
            layout,
            sent: 0,
            posted_seen: 0,
            interest: send.interest.clone(),
            qpn: send.dest_qpn,
            pd,
            src_qpn,
            cached_keys: [NO_KEY; CACHED_REGIONS],
            regions: [const { None }; CACHED_REGIONS],
            victim: 0,
            private: Vec::new(),
            life,
            peer,
        })
    }

    pub(super) fn inbound(&self) -> &SharedMem {
        self.producer.memory()
    }

    /// What the target accepts from us now; `None`: nothing. Only meaningful inside a hazard.
    #[inline]
    pub(super) fn accepts(&self) -> Option<Accept> {
        let accept = Accept::from_word(self.inbound().load(ACCEPT, Acquire));
        (accept.is_open() && accept.src_qpn() == self.src_qpn).then_some(accept)
    }

    /// The mapped region of a key; an index for [`Remote::cached`].
    #[inline]
    pub(super) fn find_region(&mut self, rkey: u32, receive: bool) -> Asked<Kept> {
        let key = cache_key(rkey, receive);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            return Asked::Granted(Kept::Mapped(at));
        }
        self.map_region(rkey, receive)
    }

    #[cold]
    fn map_region(&mut self, rkey: u32, receive: bool) -> Asked<Kept> {
        let key = cache_key(rkey, receive);
        if let Some((_, region)) = self.private.iter().find(|(known, _)| *known == key) {
            return Asked::Granted(Kept::Private(region.clone()));
        }
        match self.peer.region(&self.interest, self.qpn, RegionId { pd: self.pd, rkey, receive }) {
            Asked::Granted(Region::Mapped(region)) => {
                let at = self.victim;
                self.victim = (at + 1) % CACHED_REGIONS;
                self.cached_keys[at] = key;
                self.regions[at] = Some(region);
                Asked::Granted(Kept::Mapped(at))
            }
            Asked::Granted(Region::Private(region)) => {
                if self.private.len() >= CACHED_REGIONS {
                    self.private.remove(0);
                }
                self.private.push((key, region.clone()));
                Asked::Granted(Kept::Private(region))
            }
            Asked::Refused(reason) => Asked::Refused(reason),
            Asked::NotYet => Asked::NotYet,
        }
    }

    #[inline]
    pub(super) fn cached(&self, at: usize) -> &Arc<RemoteRegion> {
        self.regions[at].as_ref().expect("find_region returned it")
    }

    /// Forgets a region that its owner has deregistered.
    #[cold]
    pub(super) fn forget(&mut self, at: usize) {
        self.cached_keys[at] = NO_KEY;
        self.regions[at] = None;
    }

    /// As [`Remote::forget`], for a region that is not mapped, or only a part of it.
    pub(super) fn forget_private(&mut self, region: &Arc<PrivateRegion>) {
        self.private.retain(|(_, known)| !Arc::ptr_eq(known, region));
        let is_part =
            |part: &RemoteRegion| part.around.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, region));
        if let Some(at) = self.regions.iter().position(|kept| kept.as_deref().is_some_and(is_part)) {
            self.forget(at);
        }
    }

    /// Forgets what is kept of a key for the placing of receives.
    pub(super) fn forget_receive(&mut self, rkey: u32) {
        let key = cache_key(rkey, true);
        self.private.retain(|(known, _)| *known != key);
        if let Some(at) = self.cached_keys.iter().position(|cached| *cached == key) {
            self.forget(at);
        }
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    pub(super) fn life(&self) -> u32 {
        self.life
    }
}

/// A refused connection, in words.
pub(super) fn refused(dst_qpn: u32, reason: u32) -> Error {
    Error::Peer {
        operation: "connect a queue pair",
        peer: format!("queue pair {dst_qpn:#x}"),
        what: format!("its process refused: {}", refusal::text(reason)),
    }
}
