//! What a process has once for the shared-memory way: its queue pairs, those of its completion queues on which
//! somebody may sleep, and what it does and gives to peers.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

use farcall_capture::Recorder;
use farcall_shm::{AddressSpace, Mutex};
use farcall_verbs::Result;

use super::cq::CqCore;
use super::datagram::DatagramCore;
use super::places::Places;
use super::qp::{QpCore, key_bit};
use super::segments::Segments;
use super::stopped::StoppedAccesses;
use crate::life::rendezvous::Request;
use crate::life::{Client, INSTANCE, Numbers, Process, Way};

pub(crate) struct Host {
    pub(crate) process: Process,
    numbers: Numbers<Numbered>,
    pub(crate) queue_memory: Segments,
    pub(crate) pair_memory: Segments,
    pub(crate) region_memory: Segments,
    /// The objects that live.
    pub(super) places: Places,
    /// Completion queues on which somebody may sleep.
    sleepers: Mutex<Vec<Weak<CqCore>>>,
    pub(crate) stopped: StoppedAccesses,
    /// The bits of keys with which receives of connected pairs were posted.
    receive_keys: AtomicU64,
    /// What the service thread does on behalf of peers, one access at a time.
    pub(crate) access_turn: Mutex<()>,
    /// Our address space, readable and writable, once a peer needs it.
    spaces: [OnceLock<Option<AddressSpace>>; 2],
    /// The way to other hosts, once something goes there.
    pub(crate) abroad: OnceLock<Arc<dyn Abroad>>,
    /// Held while it is opened.
    pub(crate) opening: Mutex<()>,
    /// What goes either way is recorded, if that is asked for.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

/// The way to other hosts, as this one's objects need it.
pub(crate) trait Abroad: Send + Sync {
    /// Returns when nothing is under way that began before: memory that was revoked is no longer accessed.
    fn settle(&self);

    /// The owner of a completion queue is about to sleep: he does not look for packets from now on.
    fn owner_sleeps(&self);

    /// What it is.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What a queue pair number names.
#[derive(Clone)]
enum Numbered {
    Connected(Weak<QpCore>),
    Datagrams(Weak<DatagramCore>),
}

impl Host {
    /// The process's one instance, made at first use.
    pub(crate) fn get() -> Result<Arc<Self>> {
        let mut slot = INSTANCE.lock();
        if let Some(instance) = &*slot {
            return Ok(instance.clone().downcast().expect("only this type is put there"));
        }
        let host = Arc::new(Self {
            process: Process::new()?,
            numbers: Numbers::default(),
            queue_memory: Segments::of_queues(),
            pair_memory: Segments::of_pairs(),
            region_memory: Segments::of_regions(),
            places: Places::default(),
            sleepers: Mutex::default(),
            stopped: StoppedAccesses::default(),
            receive_keys: AtomicU64::new(0),
            access_turn: Mutex::default(),
            spaces: Default::default(),
            abroad: OnceLock::new(),
            opening: Mutex::default(),
            recorder: Recorder::configured()?.map(Arc::new),
        });
        crate::life::start(host.clone())?;
        *slot = Some(host.clone());
        Ok(host)
    }

    /// Our address space for peers; `None` if it cannot be handed over.
    pub(super) fn address_space(&self, writable: bool) -> Option<&AddressSpace> {
        let space = self.spaces[usize::from(writable)].get_or_init(|| AddressSpace::own(writable));
        if space.is_none() {
            tracing::debug!(
                "softnic: no /proc/self/mem: peers reach memory of reg_mr through our service thread"
            );
        }
        space.as_ref()
    }

    /// Makes a connected queue pair with a number of its own.
    pub(crate) fn register_qp(&self, make: impl FnOnce(u32) -> Result<Arc<QpCore>>) -> Result<Arc<QpCore>> {
        let named = |qp: Arc<QpCore>| (qp.clone(), Numbered::Connected(Arc::downgrade(&qp)));
        self.numbers.register(&self.process.service, |qpn| make(qpn).map(named))
    }

    /// Makes a datagram queue pair with a number of its own.
    pub(crate) fn register_datagrams(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<DatagramCore>>,
    ) -> Result<Arc<DatagramCore>> {
        let named = |qp: Arc<DatagramCore>| (qp.clone(), Numbered::Datagrams(Arc::downgrade(&qp)));
        self.numbers.register(&self.process.service, |qpn| make(qpn).map(named))
    }

    pub(crate) fn unregister_qp(&self, qpn: u32) {
        self.numbers.remove(qpn);
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<QpCore>> {
        self.numbers.get(qpn)?.connected()
    }

    pub(crate) fn datagrams(&self, qpn: u32) -> Option<Arc<DatagramCore>> {
        self.numbers.get(qpn)?.datagrams()
    }

    pub(super) fn queue_pairs(&self) -> Vec<Arc<QpCore>> {
        self.numbers.all().iter().filter_map(Numbered::connected).collect()
    }

    /// Receives that were posted with the key of a region that was revoked are checked when messages meet them.
    pub(crate) fn region_was_revoked(&self, lkey: u32) {
        if self.receive_keys.load(Relaxed) & key_bit(lkey) != 0 {
            self.queue_pairs().iter().for_each(|qp| qp.region_was_revoked(lkey));
        }
    }

    /// Receives are posted with elements of keys that have these bits.
    #[cold]
    pub(crate) fn note_receive_keys(&self, bits: u64) {
        self.receive_keys.fetch_or(bits, Relaxed);
    }

    /// A completion queue with a channel was made.
    pub(crate) fn add_sleeper(&self, queue: &Arc<CqCore>) {
        let mut sleepers = self.sleepers.lock();
        // Now and then, so that the list is not longer than twice what lives.
        if sleepers.len() == sleepers.capacity() {
            sleepers.retain(|queue| queue.strong_count() > 0);
        }
        sleepers.push(Arc::downgrade(queue));
    }
}

impl Numbered {
    fn connected(&self) -> Option<Arc<QpCore>> {
        match self {
            Self::Connected(qp) => qp.upgrade(),
            Self::Datagrams(_) => None,
        }
    }

    fn datagrams(&self) -> Option<Arc<DatagramCore>> {
        match self {
            Self::Datagrams(qp) => qp.upgrade(),
            Self::Connected(_) => None,
        }
    }
}

impl Way for Host {
    fn process(&self) -> &Process {
        &self.process
    }

    fn process_ended(&self, instance: u64) {
        let numbered = self.numbers.all();
        let connected: Vec<_> = numbered.iter().filter_map(Numbered::connected).collect();
        connected.iter().for_each(|qp| qp.process_ended(instance));
        self.stopped.prune();
        // What it was given of shared receives and has not used goes to others.
        connected.iter().for_each(|qp| qp.continue_receives());
        numbered.iter().filter_map(Numbered::datagrams).for_each(|qp| qp.process_ended(instance));
    }

    fn answer(&self, client: &Arc<Client>, request: &Request, fds: Vec<OwnedFd>) -> rustix::io::Result<()> {
        self.answer_peer(client, request, fds)
    }

    fn look_after_sleepers(&self) {
        let nudged: Vec<_> = {
            let sleepers = self.sleepers.lock();
            sleepers.iter().filter_map(Weak::upgrade).filter(|queue| queue.is_nudged()).collect()
        };
        nudged.iter().for_each(|queue| queue.look_after());
    }
}
