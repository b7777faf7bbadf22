//! What a process has once: its blocks of queue pair numbers, its regions, its peers, and one blocking service thread.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use farcall_verbs::{AsyncEvent, Error, Gid, Result};

use crate::fence;
use crate::past_lives::PastLives;
use crate::peer::Peer;
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
    pub(crate) fn take(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a turn that was taken before.
    pub(crate) fn wait(&self) {
        drop(self.take());
    }
}

static PROCESS: Mutex<Option<Arc<Process>>> = Mutex::new(None);

pub(crate) struct Process {
    pid: u32,
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
    next_pd: AtomicU32,
    next_cq: AtomicU32,
    events: Mutex<Vec<AsyncEvent>>,
}

/// Queue pair numbers: handed out in turn, so that one is reused as late as possible.
struct Numbers {
    blocks: Vec<Arc<Block>>,
    next: u32,
    queue_pairs: HashMap<u32, Weak<QpCore>>,
}

impl Process {
    /// The process's one instance, made at first use.
    pub(crate) fn get() -> Result<Arc<Self>> {
        let mut slot = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = &*slot {
            if process.pid == std::process::id() {
                return Ok(process.clone());
            }
            return Err(Error::InvalidState {
                operation: "open the software RNIC",
                object: "this process".into(),
                state: "a fork of one that uses it".into(),
                remedy: "open the device in the child only, or exec first",
            });
        }
        fence::asymmetric();
        let process = Arc::new(Self {
            pid: std::process::id(),
            instance: RandomState::new().build_hasher().finish(),
            gid: gid(),
            regions: RegionTable::new()?,
            service: Service::new()?,
            past_lives: PastLives::default(),
            numbers: Mutex::new(Numbers { blocks: Vec::new(), next: 0, queue_pairs: HashMap::new() }),
            peers: Mutex::default(),
            spaces: Default::default(),
            access_turn: Turn::default(),
            next_pd: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            events: Mutex::default(),
        });
        process.service.start(&process)?;
        *slot = Some(process.clone());
        Ok(process)
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

    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_cq(&self) -> u32 {
        self.next_cq.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a queue pair with a number of its own.
    pub(crate) fn register_qp(&self, make: impl FnOnce(u32) -> Result<Arc<QpCore>>) -> Result<Arc<QpCore>> {
        let qpn = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).take(&self.service)?;
        let made = make(qpn);
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        match &made {
            Ok(qp) => numbers.queue_pairs.insert(qpn, Arc::downgrade(qp)),
            Err(_) => numbers.queue_pairs.remove(&qpn),
        };
        made
    }

    pub(crate) fn unregister_qp(&self, qpn: u32) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).queue_pairs.remove(&qpn);
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<QpCore>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).queue_pairs.get(&qpn)?.upgrade()
    }

    pub(crate) fn queue_pairs(&self) -> Vec<Arc<QpCore>> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.queue_pairs.values().filter_map(Weak::upgrade).collect()
    }

    /// The process behind a queue pair number, met at first use.
    pub(crate) fn peer_of(&self, qpn: u32) -> Result<Arc<Peer>> {
        let block = block_of(qpn);
        let known =
            |peers: &HashMap<u32, Arc<Peer>>| peers.get(&block).filter(|peer| !peer.check_dead()).cloned();
        if let Some(peer) = known(&self.peers.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(peer);
        }
        // Not under the lock: a peer that does not answer must not hold up others.
        let peer = Arc::new(Peer::meet(block)?);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known(&peers) {
            return Ok(peer);
        }
        self.service.watch(&peer)?;
        if let Some(dead) = peers.insert(block, peer.clone()) {
            self.service.unwatch(&dead);
        }
        Ok(peer)
    }

    /// Gives up a dead peer, so that its descriptors and mappings go with its last queue pair.
    pub(crate) fn forget(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, known| !Arc::ptr_eq(known, peer));
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        const KEPT: usize = 1024;
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < KEPT {
            events.push(event);
        }
    }

    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        (!events.is_empty()).then(|| events.remove(0))
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
                vacant.insert(Weak::new());
                return Ok(qpn);
            }
        }
        unreachable!("at most half of the numbers are taken");
    }
}
