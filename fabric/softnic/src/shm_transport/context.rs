//! State that a process has once for the shared-memory transport: its queue pairs, its completion queues that have a
//! channel, and what it executes for and grants to peers.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use farcall_capture::Recorder;
use farcall_shm::{AddressSpace, Mutex, hazard};
use farcall_verbs::Result;

use super::core::ShmCore;
use super::cq::CqCore;
use super::datagram::DatagramCore;
use super::object_counts::ObjectCounts;
use super::qp::{QueuePair, key_bit};
use super::segments::Segments;
use super::suspended_access::SuspendedAccesses;
use crate::process::regions::GrantUse;
use crate::process::rendezvous::Request;
use crate::process::{Client, INSTANCE, Process, QpnTable, TransportBackend};

pub(crate) struct ShmTransport {
    pub(crate) core: Arc<ShmCore>,
    qpns: QpnTable<QpnEntry>,
    pub(crate) queue_memory: Segments,
    pub(crate) region_memory: Segments,
    /// Numbers of existing objects.
    pub(crate) object_counts: Arc<ObjectCounts>,
    /// Completion queues that have a channel, so a thread may sleep on them.
    sleepers: Mutex<Vec<Weak<CqCore>>>,
    /// Union of the key bits of all receives posted to connected queue pairs.
    receive_keys: AtomicU64,
    /// This process's address space, read-only and writable; opened when a peer first needs it.
    spaces: [OnceLock<Option<AddressSpace>>; 2],
    /// RoCEv2 transport; created at its first use.
    pub(crate) remote: OnceLock<Arc<dyn RemoteTransport>>,
    /// Held while the RoCEv2 transport is created.
    pub(crate) opening: Mutex<()>,
    /// Recorder of packets and messages of both transports; `None` if no recording is configured.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

/// RoCEv2 transport, as seen by the objects of the shared-memory transport.
pub(crate) trait RemoteTransport: Send + Sync {
    /// Waits until all work that began before the call has ended. Revoked memory is then no longer accessed.
    fn quiesce(&self);

    /// Called when the application thread of a completion queue is about to sleep and stops polling for packets.
    fn on_cq_sleep(&self);

    /// Returns the transport as `Any`, for downcasts to its concrete type.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// The object that a queue pair number identifies.
#[derive(Clone)]
enum QpnEntry {
    Connected(Weak<QueuePair>),
    Datagrams(Weak<DatagramCore>),
}

impl ShmTransport {
    /// Returns the process's only instance; creates it at the first call.
    pub(crate) fn get() -> Result<Arc<Self>> {
        let mut slot = INSTANCE.lock();
        if let Some(instance) = &*slot {
            return Ok(instance.clone().downcast().expect("only this type is put there"));
        }
        let shm = Arc::new(Self {
            core: Arc::new(ShmCore {
                process: Process::new()?,
                pair_memory: Segments::of_pairs(),
                suspended: SuspendedAccesses::default(),
                access_turn: Mutex::default(),
            }),
            qpns: QpnTable::default(),
            queue_memory: Segments::of_queues(),
            region_memory: Segments::of_regions(),
            object_counts: Arc::default(),
            sleepers: Mutex::default(),
            receive_keys: AtomicU64::new(0),
            spaces: Default::default(),
            remote: OnceLock::new(),
            opening: Mutex::default(),
            recorder: Recorder::configured()?.map(Arc::new),
        });
        crate::process::start(shm.clone())?;
        *slot = Some(shm.clone());
        Ok(shm)
    }

    /// Returns this process's address space for peers; `None` if it cannot be opened.
    pub(super) fn address_space(&self, writable: bool) -> Option<&AddressSpace> {
        let space = self.spaces[usize::from(writable)].get_or_init(|| AddressSpace::own(writable));
        if space.is_none() {
            tracing::debug!(
                "softnic: no /proc/self/mem: peers reach memory of reg_mr through our service thread"
            );
        }
        space.as_ref()
    }

    /// Creates a connected queue pair with a new number.
    pub(crate) fn register_qp(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<QueuePair>>,
    ) -> Result<Arc<QueuePair>> {
        let entry_of = |qp: Arc<QueuePair>| (qp.clone(), QpnEntry::Connected(Arc::downgrade(&qp)));
        self.qpns.register(&self.core.process.service, |qpn| make(qpn).map(entry_of))
    }

    /// Creates a datagram queue pair with a new number.
    pub(crate) fn register_datagrams(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<DatagramCore>>,
    ) -> Result<Arc<DatagramCore>> {
        let entry_of = |qp: Arc<DatagramCore>| (qp.clone(), QpnEntry::Datagrams(Arc::downgrade(&qp)));
        self.qpns.register(&self.core.process.service, |qpn| make(qpn).map(entry_of))
    }

    pub(crate) fn unregister_qp(&self, qpn: u32) {
        self.qpns.remove(qpn);
    }

    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<QueuePair>> {
        self.qpns.get(qpn)?.connected()
    }

    pub(crate) fn datagrams(&self, qpn: u32) -> Option<Arc<DatagramCore>> {
        self.qpns.get(qpn)?.datagrams()
    }

    pub(super) fn queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        self.qpns.all().iter().filter_map(QpnEntry::connected).collect()
    }

    /// Marks receives that were posted with a revoked key, so that they are checked when a message arrives.
    pub(crate) fn region_was_revoked(&self, lkey: u32) {
        if self.receive_keys.load(Relaxed) & key_bit(lkey) != 0 {
            self.queue_pairs().iter().for_each(|qp| qp.region_was_revoked(lkey));
        }
    }

    /// Called after a region of `pd` was revoked. Waits until no peer accesses the region, at most until `deadline`;
    /// returns whether none does.
    pub(crate) fn wait_out_of_region(
        &self,
        pd: u32,
        rkey: u32,
        granted: GrantUse,
        deadline: Instant,
    ) -> bool {
        // A peer reaches a region only through queue pairs of its domain, and writes only to receives of that domain.
        let concerns = |(own, receives): (u32, u32), hazard| {
            (own == pd && hazard == hazard::of_region(rkey))
                || (receives == pd && granted.receive && hazard == hazard::RECEIVES)
        };
        let mut clear = true;
        for qp in self.queue_pairs() {
            let domains = (qp.pd, qp.receives_pd);
            clear &= qp.wait_until_no_access(deadline, |hazard| concerns(domains, hazard));
        }
        // Read last: an inbound grant that was reset in the meantime is in this list, or was waited for above.
        clear && self.core.suspended.has_none(concerns)
    }

    /// Records that receives are posted whose scatter elements have these key bits.
    #[cold]
    pub(crate) fn note_receive_keys(&self, bits: u64) {
        self.receive_keys.fetch_or(bits, Relaxed);
    }

    /// Registers a completion queue that has a channel.
    pub(crate) fn add_sleeper(&self, queue: &Arc<CqCore>) {
        let mut sleepers = self.sleepers.lock();
        // Pruned when the vector is full, so the list is at most twice as long as the number of existing queues.
        if sleepers.len() == sleepers.capacity() {
            sleepers.retain(|queue| queue.strong_count() > 0);
        }
        sleepers.push(Arc::downgrade(queue));
    }
}

impl QpnEntry {
    fn connected(&self) -> Option<Arc<QueuePair>> {
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

impl TransportBackend for ShmTransport {
    fn process(&self) -> &Process {
        &self.core.process
    }

    fn on_process_exit(&self, instance: u64) {
        let entries = self.qpns.all();
        let connected: Vec<_> = entries.iter().filter_map(QpnEntry::connected).collect();
        connected.iter().for_each(|qp| qp.on_process_exit(instance));
        self.core.suspended.prune();
        // Shared receives that the process held without using them become available to other queue pairs.
        connected.iter().for_each(|qp| qp.continue_receives());
        entries.iter().filter_map(QpnEntry::datagrams).for_each(|qp| qp.on_process_exit(instance));
    }

    fn answer(&self, client: &Arc<Client>, request: &Request, fds: Vec<OwnedFd>) -> rustix::io::Result<()> {
        self.handle_peer_request(client, request, fds)
    }

    fn service_sleeping_cqs(&self) {
        let requested: Vec<_> = {
            let sleepers = self.sleepers.lock();
            sleepers.iter().filter_map(Weak::upgrade).filter(|queue| queue.has_service_request()).collect()
        };
        requested.iter().for_each(|queue| queue.service_for_sleeper());
    }
}
