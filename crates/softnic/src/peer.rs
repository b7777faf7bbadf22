//! A peer process: how we ask it for grants, what it granted, and whether it lives.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use farcall_verbs::{Access, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::fence;
use crate::fork::UnforkedFd;
use crate::qp::{Connected, QpCore};
use crate::regions;
use crate::rendezvous::{
    Kinship, Reach, Reply, ReplyBody, Request, RequestBody, Violation, has_died, judge, peer_pidfd,
    recv_frame, refusal, send_frame, socket_address,
};
use crate::service::{Bell, is_service_thread};
use crate::shared::{AddressSpace, Mapping, Segment, SharedMem, SharedWord};

/// How long a caller waits in place for a process that we meet for the first time, before its request is set aside.
const HELLO_WAIT: Duration = Duration::from_secs(1);

/// How long a caller waits in place for a grant before its request is set aside; a live peer needs some microseconds.
const GRANT_WAIT: Duration = Duration::from_millis(100);

/// A region of the peer, mapped here.
pub(crate) struct RemoteRegion {
    pub(crate) rkey: u32,
    pub(crate) access: Access,
    addr: u64,
    len_bytes: u64,
    generation: u32,
    mapping: Arc<Mapping>,
    /// The whole of which this is the part that can be mapped; `None` if it is all.
    pub(crate) around: Option<Arc<PrivateRegion>>,
}

impl RemoteRegion {
    /// Where `len_bytes` at the peer's address `addr` are here; `None` if they are not inside the region.
    #[inline]
    pub(crate) fn locate(&self, addr: u64, len_bytes: u64) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        if offset > self.len_bytes || len_bytes > self.len_bytes - offset {
            return None;
        }
        // SAFETY: `map_region` checked that the mapping covers the region, and the range is inside the region.
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
    len_bytes: u64,
    generation: u32,
    /// Through which it is reached; `None`: only by its owner.
    pub(crate) space: Option<Arc<AddressSpace>>,
}

impl PrivateRegion {
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
    Mapped(Arc<RemoteRegion>),
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

/// What an asker holds as long as it wants the answers: those that nobody wants any more are dropped, with the
/// descriptors that came with them.
#[derive(Clone, Default)]
pub(crate) struct Interest(Arc<()>);

/// A request that was sent and not yet answered to its asker.
struct Outstanding {
    id: u32,
    asker: Weak<()>,
    body: RequestBody,
    answer: Option<(ReplyBody, Vec<OwnedFd>)>,
}

struct Asks {
    socket: Arc<UnforkedFd>,
    next_id: u32,
    outstanding: Vec<Outstanding>,
}

pub(crate) struct Peer {
    kinship: Kinship,
    pidfd: OwnedFd,
    socket: Arc<UnforkedFd>,
    dead: AtomicBool,
    generations: SharedMem,
    asks: Mutex<Asks>,
    /// How the service thread is told of answers that nobody waits for.
    bell: OnceLock<Bell>,
    regions: Mutex<HashMap<RegionId, Region>>,
    /// Its address space, read-only and writable, once granted.
    spaces: [OnceLock<Arc<AddressSpace>>; 2],
    queue_pairs: Mutex<Vec<Weak<QpCore>>>,
}

/// What a mapped region is known by: its key through which domain, and whether it was mapped to place receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RegionId {
    pub(crate) pd: u32,
    pub(crate) rkey: u32,
    pub(crate) receive: bool,
}

/// What came of asking a peer.
pub(crate) enum Asked<T> {
    /// It answered.
    Granted(T),
    /// It said no; see [`refusal`].
    Refused(u32),
    /// It has not answered yet; ask again.
    NotYet,
}

/// A process that is being met.
pub(crate) struct Meeting {
    name: String,
    kinship: Kinship,
    pidfd: OwnedFd,
    asks: Asks,
    interest: Interest,
}

/// A meeting that goes on, though nobody waits for it. It ends when none of those is left who want to meet the process.
#[derive(Default)]
pub(crate) struct LongMeeting {
    under_way: Mutex<Option<Meeting>>,
    /// Somebody has waited in place, and in vain: a process that is stopped or starved costs that once.
    is_slow: AtomicBool,
}

impl LongMeeting {
    /// Goes on with meeting the process that owns `block`; `None`: it has not answered yet. Waits a little in place, as long as
    /// nobody did so in vain, but never in the service thread.
    pub(crate) fn proceed(&self, block: u32) -> Result<Option<Peer>> {
        let mut under_way = if is_service_thread() {
            match self.under_way.try_lock() {
                Ok(under_way) => under_way,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Ok(None),
            }
        } else {
            self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let waits = !is_service_thread() && !self.is_slow.load(Ordering::Relaxed);
        let patience = if waits { HELLO_WAIT } else { Duration::ZERO };
        let meeting = match under_way.take() {
            Some(meeting) => Some(meeting),
            None => Meeting::begin(block, patience)?,
        };
        match meeting.map(|meeting| meeting.proceed(patience)).transpose()? {
            Some(Met::Peer(peer)) => return Ok(Some(peer)),
            Some(Met::NotYet(meeting)) => *under_way = Some(meeting),
            None => {}
        }
        if waits {
            self.is_slow.store(true, Ordering::Relaxed);
        }
        Ok(None)
    }
}

/// How far a meeting has come.
pub(crate) enum Met {
    Peer(Peer),
    NotYet(Meeting),
}

const MEET: &str = "connect to a peer process";

impl Meeting {
    /// Turns to the process that owns `block`; `None` if it has no time for us within `patience`.
    pub(crate) fn begin(block: u32, patience: Duration) -> Result<Option<Self>> {
        let name = format!("owner of queue pair numbers {block:#05x}xxx");
        let socket = match connect(block, patience) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNREFUSED | Errno::NOENT) => {
                let what = "no process owns it: the peer has ended, or is in another network namespace (share FARCALL_SOCKET_DIR)";
                return Err(Error::Peer { operation: MEET, peer: name, what: what.into() });
            }
            Err(e) => return Err(Error::os(MEET, format!("reach the {name}"), e)),
        };
        let kinship = judge(socket.as_fd(), &name)?;
        let pidfd = peer_pidfd(socket.as_fd())?;
        let asks = Asks { socket: Arc::new(UnforkedFd::new(socket)), next_id: 0, outstanding: Vec::new() };
        Ok(Some(Self { name, kinship, pidfd, asks, interest: Interest::default() }))
    }

    /// Asks who it is, and waits for the answer no longer than `patience`.
    pub(crate) fn proceed(mut self, patience: Duration) -> Result<Met> {
        let fail = |what: &str| Error::Peer { operation: MEET, peer: self.name.clone(), what: what.into() };
        let hello = RequestBody::Hello { asymmetric: fence::asymmetric() };
        let (body, fds) = match self.asks.ask(&self.interest, hello, &[], patience) {
            Ok(Asked::Granted(answer)) => answer,
            Ok(Asked::Refused(reason)) => return Err(fail(refusal::text(reason))),
            Ok(Asked::NotYet) => return Ok(Met::NotYet(self)),
            // It died with our connection in its queue.
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(fail("the peer has ended")),
            Err(e) => return Err(Error::os(MEET, format!("talk to the {}", self.name), e)),
        };
        let ReplyBody::Hello { asymmetric, .. } = body else {
            return Err(fail("it answered nonsense"));
        };
        if asymmetric != fence::asymmetric() {
            return Err(fail(refusal::text(refusal::FENCES_DIFFER)));
        }
        let table = fds.first().ok_or_else(|| fail("it sent no table of regions"))?;
        let generations = Segment::map_foreign(table.as_fd(), 0, regions::MAX_REGIONS * 8, false)?;
        Ok(Met::Peer(Peer {
            kinship: self.kinship,
            pidfd: self.pidfd,
            socket: self.asks.socket.clone(),
            dead: AtomicBool::new(false),
            generations: SharedMem::new(generations),
            asks: Mutex::new(self.asks),
            bell: OnceLock::new(),
            regions: Mutex::default(),
            spaces: Default::default(),
            queue_pairs: Mutex::default(),
        }))
    }
}

impl Peer {
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(crate) fn socket(&self) -> &UnforkedFd {
        &self.socket
    }

    /// Whether the process is known to have ended.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Asks the kernel, for waits that must not outlast a death.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.is_dead() && has_died(&self.pidfd) {
            self.dead.store(true, Ordering::Release);
        }
        self.is_dead()
    }

    /// Called once when the pidfd tells of the end: every queue pair connected to it is looked at by its owner.
    pub(crate) fn bury(&self) {
        self.dead.store(true, Ordering::Release);
        let queue_pairs = self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        // Over an unreliable transport nobody hears of it.
        let hear = |qp: &Arc<QpCore>| qp.transport() == Connected::Reliable;
        for qp in queue_pairs.iter().filter_map(Weak::upgrade).filter(hear) {
            qp.announce_locally(true);
        }
    }

    pub(crate) fn attach(&self, qp: Weak<QpCore>) {
        let mut queue_pairs = self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner);
        queue_pairs.retain(|qp| qp.strong_count() > 0);
        queue_pairs.push(qp);
    }

    /// Asks for something, for as long as `interest` lives; waits a little in place.
    pub(crate) fn ask(
        &self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> Asked<(ReplyBody, Vec<OwnedFd>)> {
        let mut asks = if is_service_thread() {
            // Whoever is inside may wait for an answer of ours: two processes would stand still for each other.
            match self.asks.try_lock() {
                Ok(asks) => asks,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Asked::NotYet,
            }
        } else {
            self.asks.lock().unwrap_or_else(PoisonError::into_inner)
        };
        // A broken socket means that the peer is dying; its pidfd will say so.
        let asked = asks.ask(interest, body, fds, GRANT_WAIT).unwrap_or(Asked::NotYet);
        self.leave(&asks);
        asked
    }

    pub(crate) fn set_bell(&self, bell: Bell) {
        let _ = self.bell.set(bell);
    }

    /// What is still to be answered is left to the service thread.
    fn leave(&self, asks: &Asks) {
        if asks.owes_answer()
            && let Some(bell) = self.bell.get()
        {
            bell.set(&self.socket);
        }
    }

    /// Asks it to match what we sent to its queue pair with shared receives, or to look at the first message. A hint: if it is
    /// lost, the next will do, or its next poll.
    pub(crate) fn ask_to_match(&self, dst_qpn: u32) {
        let request = Request { id: 0, body: RequestBody::Match { dst_qpn } };
        let _ = send_frame(self.socket.as_fd(), &request.encode(), &[]);
    }

    /// Tells it that we broke the rules of its queue pair, whose ring says so too: its owner may not look there.
    pub(crate) fn tell_violation(&self, dst_qpn: u32, life: u32, violation: Violation) {
        let request = Request { id: 0, body: RequestBody::Violated { dst_qpn, life, violation } };
        let _ = send_frame(self.socket.as_fd(), &request.encode(), &[]);
    }

    /// Takes in answers that nobody waits for in place, for the service thread; whether one grants what somebody has set
    /// aside.
    ///
    /// # Errors
    /// If the peer has hung up.
    pub(crate) fn collect(&self) -> rustix::io::Result<bool> {
        // Whoever is inside takes them, and on leaving asks for another call if there is more to come.
        let Ok(mut asks) = self.asks.try_lock() else { return Ok(false) };
        asks.receive()?;
        self.leave(&asks);
        let granted = |o: &Outstanding| !matches!(o.answer, None | Some((ReplyBody::Refused(_), _)));
        Ok(asks.outstanding.iter().any(granted))
    }

    /// A region as seen through the peer's queue pair `qpn`.
    pub(crate) fn region(&self, interest: &Interest, qpn: u32, id: RegionId) -> Asked<Region> {
        if !regions::is_plausible(id.rkey) {
            return Asked::Refused(refusal::UNKNOWN_KEY);
        }
        let known = self.regions.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(region) = known.filter(|region| region.is_current(self)) {
            return Asked::Granted(region);
        }
        let body = RequestBody::MapRegion { dst_qpn: qpn, rkey: id.rkey, receive: id.receive };
        match self.ask(interest, body, &[]) {
            Asked::Granted((body, fds)) => match self.accept_region(id, &body, fds) {
                Some(region) => {
                    let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
                    regions.retain(|_, region| region.is_current(self));
                    make_room(&mut regions, region.mapped_bytes());
                    regions.insert(id, region.clone());
                    Asked::Granted(region)
                }
                None => Asked::Refused(refusal::MALFORMED),
            },
            Asked::Refused(reason) => Asked::Refused(reason),
            Asked::NotYet => Asked::NotYet,
        }
    }

    fn accept_region(&self, id: RegionId, body: &ReplyBody, mut fds: Vec<OwnedFd>) -> Option<Region> {
        let ReplyBody::MapRegion { addr, len_bytes, generation, access, reach, .. } = *body else {
            return None;
        };
        let space = match reach {
            Reach::Mapped => return map_region(id, body, &fds, None).map(Arc::new).map(Region::Mapped),
            // Who may not have ours does not give us his.
            Reach::AddressSpace | Reach::Partly if self.kinship != Kinship::SameUser => return None,
            Reach::AddressSpace | Reach::Partly => {
                Some(self.accept_space(id, Access::from_bits(access)?, fds.pop())?)
            }
            Reach::Owner => None,
        };
        let access = Access::from_bits(access)?;
        addr.checked_add(len_bytes)?;
        let whole = PrivateRegion { rkey: id.rkey, access, addr, len_bytes, generation, space };
        let whole = Arc::new(whole);
        if reach == Reach::Partly {
            return map_region(id, body, &fds, Some(whole)).map(Arc::new).map(Region::Mapped);
        }
        Some(Region::Private(whole))
    }

    /// One descriptor of each kind is enough for all regions of a peer.
    fn accept_space(&self, id: RegionId, access: Access, fd: Option<OwnedFd>) -> Option<Arc<AddressSpace>> {
        let slot = &self.spaces[usize::from(id.receive || access.intersects(Access::REMOTE_WRITE))];
        if let Some(space) = slot.get() {
            return Some(space.clone());
        }
        let space = Arc::new(AddressSpace::foreign(fd?)?);
        Some(slot.get_or_init(|| space).clone())
    }
}

/// Regions of one peer that are kept mapped, and their bytes: beyond, one that was used before is given up, and asked for
/// again when it is used again.
const MAX_KEPT_REGIONS: usize = 4096;
const MAX_KEPT_BYTES: u64 = 1 << 42;

/// Gives up regions until `len_bytes` more are within the limits.
fn make_room(regions: &mut HashMap<RegionId, Region>, len_bytes: u64) {
    while regions.len() >= MAX_KEPT_REGIONS
        || regions.values().map(Region::mapped_bytes).fold(len_bytes, u64::saturating_add) > MAX_KEPT_BYTES
    {
        let Some(victim) = regions.keys().next().copied() else { return };
        regions.remove(&victim);
    }
}

fn connect(block: u32, patience: Duration) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let address = socket_address(block).map_err(|_| Errno::NAMETOOLONG)?;
    let deadline = Instant::now() + patience;
    loop {
        match net::connect(&socket, &address) {
            // The backlog is full: its owner is busy or stopped.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            result => return result.map(|()| socket),
        }
    }
}

fn map_region(
    id: RegionId,
    body: &ReplyBody,
    fds: &[OwnedFd],
    around: Option<Arc<PrivateRegion>>,
) -> Option<RemoteRegion> {
    let ReplyBody::MapRegion {
        addr: whole_addr,
        len_bytes: whole_len_bytes,
        file_offset,
        generation,
        access,
        mapped_addr: addr,
        mapped_len_bytes: len_bytes,
        ..
    } = *body
    else {
        return None;
    };
    // What is mapped is the region, or inside of it.
    let before = addr.checked_sub(whole_addr)?;
    let is_inside = before <= whole_len_bytes && len_bytes <= whole_len_bytes - before;
    if !is_inside || (around.is_none() && len_bytes != whole_len_bytes) {
        return None;
    }
    let access = Access::from_bits(access)?;
    // What peers may only read is mapped read-only.
    let writable = id.receive || access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let len = usize::try_from(len_bytes).ok()?;
    addr.checked_add(len_bytes)?;
    let mapping = Segment::map_foreign(fds.first()?.as_fd(), file_offset, len, writable).ok()?;
    Some(RemoteRegion { rkey: id.rkey, access, addr, len_bytes, generation, mapping, around })
}

impl Asks {
    fn owes_answer(&self) -> bool {
        self.outstanding.iter().any(|outstanding| outstanding.answer.is_none())
    }

    fn ask(
        &mut self,
        interest: &Interest,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
        wait: Duration,
    ) -> rustix::io::Result<Asked<(ReplyBody, Vec<OwnedFd>)>> {
        // A peer that owes an answer is stopped or starved: that costs one wait, not one for every request.
        let wait = if is_service_thread() || self.owes_answer() { Duration::ZERO } else { wait };
        let deadline = Instant::now() + wait;
        let asker = Arc::downgrade(&interest.0);
        let id = match self.outstanding.iter_mut().find(|o| o.body == body) {
            Some(outstanding) => {
                outstanding.asker = asker;
                outstanding.id
            }
            None => {
                self.next_id = self.next_id.wrapping_add(1);
                let request = Request { id: self.next_id, body };
                send_frame(self.socket.as_fd(), &request.encode(), fds)?;
                self.outstanding.push(Outstanding { id: request.id, asker, body, answer: None });
                request.id
            }
        };
        loop {
            self.receive()?;
            let at = self.outstanding.iter().position(|o| o.id == id && o.answer.is_some());
            if let Some(answer) = at.and_then(|at| self.outstanding.swap_remove(at).answer) {
                return Ok(match answer {
                    (ReplyBody::Refused(reason), _) => Asked::Refused(reason),
                    granted => Asked::Granted(granted),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Asked::NotYet);
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn receive(&mut self) -> rustix::io::Result<()> {
        loop {
            match recv_frame(self.socket.as_fd()) {
                Ok(Some((frame, fds))) => {
                    let Some(reply) = Reply::decode(&frame) else { continue };
                    if let Some(outstanding) = self.outstanding.iter_mut().find(|o| o.id == reply.id) {
                        outstanding.answer = Some((reply.body, fds));
                    }
                }
                Ok(None) => return Err(Errno::CONNRESET),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        // Not before its answer came: as long as the peer owes it, nobody waits for others.
        self.outstanding.retain(|o| o.answer.is_none() || o.asker.strong_count() > 0);
        Ok(())
    }
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
