//! What a process has once: its blocks of queue pair numbers, its regions, its peers, and one blocking service thread.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use farcall_verbs::{Error, Gid, Result};

use crate::cq::CqCore;
use crate::datagram::DatagramCore;
use crate::fence;
use crate::fork::{self, Born};
use crate::past_lives::PastLives;
use crate::peer::{LongMeeting, Peer};
use crate::qp::QpCore;
use crate::regions::RegionTable;
use crate::rendezvous::{BLOCK_QPS, Block, block_of, claim_block, gid};
use crate::service::Service;
use crate::shared::AddressSpace;

/// A turn that one has and others can wait for the end of.
#[derive(Default)]
pub(crate) struct Turn(Mutex<()>);

impl Turn {
    /// Takes the turn until the guard is dropped.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a turn that was taken before.
    pub(crate) fn wait(&self) {
        drop(self.take());
    }
}

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);

/// The place of the process's one instance.
pub(crate) fn lock_slot() -> MutexGuard<'static, Option<Arc<Process>>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Process {
    born: Born,
    /// Tells this process from an earlier owner of the same block.
    instance: u64,
    gid: Gid,
    pub(crate) regions: RegionTable,
    pub(crate) service: Service,
    pub(crate) past_lives: PastLives,
    numbers: Mutex<Numbers>,
    peers: Mutex<HashMap<u32, Arc<Peer>>>,
    /// Our address space, readable and writable, once a peer needs it.
    spaces: [OnceLock<Option<AddressSpace>>; 2],
    /// What the service thread does on behalf of peers, one access at a time.
    pub(crate) access_turn: Turn,
    /// Processes that the service thread is meeting, by block; who wants to meet one holds the meeting.
    meetings: Mutex<HashMap<u32, Weak<LongMeeting>>>,
    /// Completion queues on which somebody may sleep.
    sleepers: Mutex<Vec<Weak<CqCore>>>,
    next_pd: AtomicU32,
    next_cq: AtomicU32,
    next_srq: AtomicU32,
}

/// Queue pair numbers: handed out in turn, so that one is reused as late as possible.
struct Numbers {
    blocks: Vec<Arc<Block>>,
    next: u32,
    queue_pairs: HashMap<u32, Numbered>,
}

/// What a queue pair number names.
enum Numbered {
    Reserved,
    Connected(Weak<QpCore>),
    Datagrams(Weak<DatagramCore>),
}

impl Process {
    /// The process's one instance, made at first use.
    pub(crate) fn get() -> Result<Arc<Self>> {
        let mut slot = lock_slot();
        if let Some(process) = &*slot {
            return Ok(process.clone());
        }
        fork::install();
        fence::asymmetric();
        let process = Arc::new(Self {
            born: Born::here(),
            instance: RandomState::new().build_hasher().finish(),
            gid: gid(),
            regions: RegionTable::new()?,
            service: Service::new()?,
            past_lives: PastLives::default(),
            numbers: Mutex::new(Numbers { blocks: Vec::new(), next: 0, queue_pairs: HashMap::new() }),
            peers: Mutex::default(),
            spaces: Default::default(),
            access_turn: Turn::default(),
            meetings: Mutex::default(),
            sleepers: Mutex::default(),
            next_pd: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            next_srq: AtomicU32::new(1),
        });
        process.service.start(&process)?;
        *slot = Some(process.clone());
        Ok(process)
    }

    /// Whether it came to us by a fork: then its threads are not here.
    pub(crate) fn is_inherited(&self) -> bool {
        self.born.is_inherited()
    }

    /// # Errors
    /// If it came to us by a fork.
    pub(crate) fn require_here(&self, operation: &'static str) -> Result<()> {
        self.born.require_here(operation, "the opened device")
    }

    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    /// Our address space for peers; `None` if it cannot be handed over.
    pub(crate) fn address_space(&self, writable: bool) -> Option<&AddressSpace> {
        let space = self.spaces[usize::from(writable)].get_or_init(|| AddressSpace::own(writable));
        if space.is_none() {
            tracing::debug!(
                "softnic: no /proc/self/mem: peers reach memory of reg_mr through our service thread"
            );
        }
        space.as_ref()
    }

    /// Whether a path leads to this host.
    ///
    /// # Errors
    /// If not, with the remedy.
    pub(crate) fn require_reachable(&self, operation: &'static str, dgid: Gid) -> Result<()> {
        if dgid == self.gid {
            return Ok(());
        }
        let what = format!(
            "GID {dgid} is not of this host and network namespace ({}): the same-host device cannot reach it \
             (containers: share a directory through FARCALL_SOCKET_DIR)",
            self.gid
        );
        Err(Error::invalid(operation, what))
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_srq(&self) -> u32 {
        self.next_srq.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_cq(&self) -> u32 {
        self.next_cq.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a connected queue pair with a number of its own.
    pub(crate) fn register_qp(&self, make: impl FnOnce(u32) -> Result<Arc<QpCore>>) -> Result<Arc<QpCore>> {
        self.register(make, |qp| Numbered::Connected(Arc::downgrade(qp)))
    }

    /// Makes a datagram queue pair with a number of its own.
    pub(crate) fn register_datagrams(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<DatagramCore>>,
    ) -> Result<Arc<DatagramCore>> {
        self.register(make, |qp| Numbered::Datagrams(Arc::downgrade(qp)))
    }

    fn register<Q>(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<Q>>,
        named: impl FnOnce(&Arc<Q>) -> Numbered,
    ) -> Result<Arc<Q>> {
        let qpn = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).take(&self.service)?;
        let made = make(qpn);
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        match &made {
            Ok(qp) => numbers.queue_pairs.insert(qpn, named(qp)),
            Err(_) => numbers.queue_pairs.remove(&qpn),
        };
        made
    }

    pub(crate) fn unregister_qp(&self, qpn: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).queue_pairs.remove(&qpn);
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<QpCore>> {
        match self.numbers.lock().unwrap_or_else(PoisonError::into_inner).queue_pairs.get(&qpn)? {
            Numbered::Connected(qp) => qp.upgrade(),
            _ => None,
        }
    }

    pub(crate) fn datagrams(&self, qpn: u32) -> Option<Arc<DatagramCore>> {
        match self.numbers.lock().unwrap_or_else(PoisonError::into_inner).queue_pairs.get(&qpn)? {
            Numbered::Datagrams(qp) => qp.upgrade(),
            _ => None,
        }
    }

    /// A completion queue with a channel was made.
    pub(crate) fn add_sleeper(&self, queue: &Arc<CqCore>) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        // Now and then, so that the list is not longer than twice what lives.
        if sleepers.len() == sleepers.capacity() {
            sleepers.retain(|queue| queue.strong_count() > 0);
        }
        sleepers.push(Arc::downgrade(queue));
    }

    /// Goes on with what peers gave to owners who sleep. For the service thread.
    pub(crate) fn look_after_sleepers(&self) {
        let nudged: Vec<_> = {
            let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            sleepers.iter().filter_map(Weak::upgrade).filter(|queue| queue.is_nudged()).collect()
        };
        nudged.iter().for_each(|queue| queue.look_after());
    }

    pub(crate) fn queue_pairs(&self) -> Vec<Arc<QpCore>> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let connected = |numbered: &Numbered| match numbered {
            Numbered::Connected(qp) => qp.upgrade(),
            _ => None,
        };
        numbers.queue_pairs.values().filter_map(connected).collect()
    }

    /// A process that sent datagrams has ended: what it left unread is still delivered, the rest is given back.
    pub(crate) fn sender_ended(&self, instance: u64) {
        let datagrams: Vec<_> = {
            let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let upgraded = numbers.queue_pairs.values().filter_map(|numbered| match numbered {
                Numbered::Datagrams(qp) => qp.upgrade(),
                _ => None,
            });
            upgraded.collect()
        };
        for qp in datagrams {
            qp.sender_ended(instance);
        }
    }

    /// The process behind a queue pair number, met at first use. `None`: it has not answered yet; ask again, with the same
    /// `meeting`, which is kept as long as somebody wants to meet the process.
    pub(crate) fn peer_of(
        &self,
        qpn: u32,
        meeting: &mut Option<Arc<LongMeeting>>,
    ) -> Result<Option<Arc<Peer>>> {
        let block = block_of(qpn);
        // Not under the lock of those that are known: a peer that does not answer must not hold up others.
        let peer = match self.known(block) {
            Some(peer) => Ok(Some(peer)),
            None => meeting
                .get_or_insert_with(|| self.meeting_of(block))
                .proceed(block)
                .and_then(|peer| peer.map(|peer| self.introduce(block, peer)).transpose()),
        };
        if !matches!(peer, Ok(None)) {
            *meeting = None;
        }
        peer
    }

    /// The meeting with the owner of a block that is under way, or a new one.
    fn meeting_of(&self, block: u32) -> Arc<LongMeeting> {
        let mut meetings = self.meetings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meeting) = meetings.get(&block).and_then(Weak::upgrade) {
            return meeting;
        }
        meetings.retain(|_, meeting| meeting.strong_count() > 0);
        let meeting = Arc::<LongMeeting>::default();
        meetings.insert(block, Arc::downgrade(&meeting));
        meeting
    }

    /// The process that owns a block, if it was met and lives.
    fn known(&self, block: u32) -> Option<Arc<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&block).filter(|peer| !peer.check_dead()).cloned()
    }

    fn introduce(&self, block: u32, peer: Peer) -> Result<Arc<Peer>> {
        let peer = Arc::new(peer);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get(&block).filter(|known| !known.check_dead()) {
            return Ok(known.clone());
        }
        self.service.watch(&peer)?;
        // Of one that has ended meanwhile the service thread is told all the same: it watches it until then.
        peers.insert(block, peer.clone());
        Ok(peer)
    }

    /// Gives up a dead peer, so that its descriptors and mappings go with its last queue pair.
    pub(crate) fn forget(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, known| !Arc::ptr_eq(known, peer));
    }
}

impl Numbers {
    fn take(&mut self, service: &Service) -> Result<u32> {
        let capacity = self.blocks.len() as u32 * BLOCK_QPS;
        if self.queue_pairs.len() as u32 * 2 >= capacity {
            let block = Arc::new(claim_block()?);
            service.listen(&block)?;
            self.blocks.push(block);
        }
        let capacity = self.blocks.len() as u32 * BLOCK_QPS;
        for _ in 0..capacity {
            let index = self.next;
            self.next = (self.next + 1) % capacity;
            let qpn = self.blocks[(index / BLOCK_QPS) as usize].qpn(index % BLOCK_QPS);
            if let std::collections::hash_map::Entry::Vacant(vacant) = self.queue_pairs.entry(qpn) {
                vacant.insert(Numbered::Reserved);
                return Ok(qpn);
            }
        }
        unreachable!("at most half of the numbers are taken");
    }
}
