//! Datagrams to and from other hosts.
//!
//! A datagram queue pair belongs to the shared-memory transport, which has its states, its receives and the order of
//! its completions. A datagram to another host is sent immediately, by its address handle, and is not acknowledged. A
//! received datagram is stored here until the receive completion queue is polled, like those in the ring of a sender on
//! this host. Until the first datagram arrives that its Q_Key admits, a queue pair costs nothing here, and its polls do
//! not poll the port.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use farcall_verbs::{QpType, ROUTE_HEADER_BYTES, Result, Sge, Wc, with_sources};
use farcall_wire::{Deth, Operation, Packet, Psn};

use super::counters::PortCounters;
use super::path::Path;
use super::port::Port;
use super::state::State;
use crate::process::QpnMap;
use crate::process::addresses::{are_devices_named, listed_peers};
use crate::shm_transport::ShmTransport;
use crate::shm_transport::cq::Source;
use crate::shm_transport::datagram::{DatagramCore, RemoteDatagram};

/// Maximum number of datagrams that wait for one queue pair: the number of receives of a busy receiver.
const QUEUED_MAX: usize = 1024;

/// A datagram to another host. Its payload is in the elements.
pub(crate) struct Datagram<'a> {
    pub(crate) path: Path,
    pub(crate) dest_qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) imm_be: Option<u32>,
    pub(crate) is_solicited: bool,
    pub(crate) sges: &'a [Sge],
    pub(crate) len_bytes: usize,
}

/// Transport of a datagram queue pair to other hosts.
pub(crate) struct RoceDatagrams {
    port: Arc<Port>,
    qpn: u32,
    next_psn: Psn,
    has_unsent: bool,
}

impl RoceDatagrams {
    /// Opens the port.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened.
    pub(crate) fn open(shm: &Arc<ShmTransport>, qpn: u32) -> Result<Self> {
        let port = Port::open(shm)?;
        port.steer(qpn)?;
        Ok(Self { port, qpn, next_psn: Psn::default(), has_unsent: false })
    }

    /// Prepares a datagram whose form was checked. [`RoceDatagrams::flush`] sends it.
    ///
    /// # Safety
    /// The elements must be readable.
    pub(crate) unsafe fn send(&mut self, datagram: &Datagram<'_>) {
        let deth = Deth { qkey: datagram.qkey, src_qpn: self.qpn };
        let packet = Packet {
            transport: QpType::Ud,
            operation: Operation::Datagram(deth, datagram.imm_be),
            solicited: datagram.is_solicited,
            ack_req: false,
            dest_qpn: datagram.dest_qpn,
            psn: self.next_psn,
        };
        self.next_psn = self.next_psn.plus(1);
        self.has_unsent = true;
        let Datagram { path, sges, len_bytes, .. } = *datagram;
        // SAFETY: by the contract of this function the elements are readable.
        self.port.prepare(|state| unsafe { state.add_datagram(path, &packet, sges, len_bytes) });
    }

    /// Sends the prepared datagrams.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.has_unsent) {
            self.port.with(|_| ());
        }
    }
}

/// Opens the port, because datagrams will be sent to another host.
///
/// # Errors
/// Returns an error if the port cannot be opened.
pub(crate) fn open(shm: &Arc<ShmTransport>) -> Result<()> {
    Port::open(shm).map(drop)
}

/// Called when a datagram queue pair begins to receive. It also receives from hosts to which nothing was sent if the
/// program publishes its address. Without the port it receives only from this host, and a warning is logged.
pub(crate) fn listen(shm: &Arc<ShmTransport>, qpn: u32) {
    let is_open = Port::opened(shm).is_some();
    if (is_open || shm.process.accepts_remote_datagrams())
        && let Err(error) = Port::open(shm).and_then(|port| port.steer(qpn))
    {
        tracing::warn!("no datagrams come from other hosts: {}", with_sources(&error));
    }
}

/// Discards the datagrams that wait for a datagram queue pair, which accepts none any more.
pub(crate) fn discard(shm: &ShmTransport, qpn: u32) {
    if let Some(port) = Port::opened(shm) {
        port.with(|state| state.rx_queues.remove(qpn));
    }
}

/// A datagram that waits for its receiver.
struct WaitingDatagram {
    header: [u8; ROUTE_HEADER_BYTES],
    src_qpn: u32,
    imm_be: Option<u32>,
    payload: Vec<u8>,
}

/// Received datagrams of one queue pair.
struct RxQueue {
    core: Arc<DatagramCore>,
    /// Readiness bit at the receive completion queue.
    bit: u32,
    waiting: VecDeque<WaitingDatagram>,
    /// Buffers of datagrams that were delivered.
    spare: Vec<Vec<u8>>,
}

/// Result of a packet that is for no connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatagramOutcome {
    Queued,
    /// No queue pair here has the number.
    Unknown,
    /// Its source host or local device is not in the configured lists.
    NotAllowed,
    /// Its sender is a process of this host that is not authorized to send over RoCEv2.
    Local,
    /// The queue pair accepts no datagrams, or not with this Q_Key, or has too many unpolled ones.
    Unwanted,
}

/// Received datagrams of a port's datagram queue pairs, and the hosts that may send them.
pub(super) struct RxQueues {
    by_qpn: QpnMap<RxQueue>,
    peers: Option<Vec<IpAddr>>,
    are_devices_named: bool,
}

impl RxQueues {
    /// # Errors
    /// Returns an error if the list of peers is malformed.
    pub(super) fn new() -> Result<Self> {
        let peers = listed_peers("open the RoCEv2 port")?;
        Ok(Self { by_qpn: QpnMap::default(), peers, are_devices_named: are_devices_named() })
    }

    /// Returns whether packets may arrive on `path`, which is given as seen by the packet.
    pub(super) fn admits(&self, shm: &ShmTransport, path: Path) -> bool {
        let is_peer = |peers: &Vec<IpAddr>| peers.contains(&path.src.to_canonical());
        self.peers.as_ref().is_none_or(is_peer)
            && (!self.are_devices_named || shm.process.is_address(path.dst))
    }

    /// Handles a packet for a queue pair that is not connected. `path` is given as seen by the packet; `len_bytes` is
    /// the UDP payload length. `is_admitted` returns whether the sender is authorized. Returns the result; accepted
    /// packets are counted here.
    pub(super) fn enqueue(
        &mut self,
        shm: &Arc<ShmTransport>,
        counters: &PortCounters,
        (path, len_bytes): (Path, usize),
        (packet, payload): (&Packet, &[u8]),
        is_admitted: impl FnOnce() -> bool,
    ) -> DatagramOutcome {
        let Operation::Datagram(Deth { qkey, src_qpn }, imm_be) = packet.operation else {
            return DatagramOutcome::Unknown;
        };
        if !self.admits(shm, path) {
            return DatagramOutcome::NotAllowed;
        }
        let Some(core) = shm.datagrams(packet.dest_qpn) else {
            return DatagramOutcome::Unknown;
        };
        if !core.status.accepts(qkey) {
            return DatagramOutcome::Unwanted;
        }
        if !is_admitted() {
            return DatagramOutcome::Local;
        }
        let Some(rx_queue) = self.rx_queue(shm, core).filter(|rx_queue| rx_queue.waiting.len() < QUEUED_MAX)
        else {
            return DatagramOutcome::Unwanted;
        };
        counters.packets_received.increment();
        let mut buffer = rx_queue.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(payload);
        let header = path.route_header(len_bytes);
        rx_queue.waiting.push_back(WaitingDatagram { header, src_qpn, imm_be, payload: buffer });
        rx_queue.core.recv_slot.cq.announce(rx_queue.bit, packet.solicited);
        DatagramOutcome::Queued
    }

    /// Returns the received datagrams of a queue pair; `None` if its completion queue has no free bit.
    fn rx_queue(&mut self, shm: &Arc<ShmTransport>, core: Arc<DatagramCore>) -> Option<&mut RxQueue> {
        match self.by_qpn.entry(core.qpn) {
            Entry::Occupied(rx_queue) => Some(rx_queue.into_mut()),
            Entry::Vacant(vacant) => {
                let (port, bit) = (Port::opened(shm)?, core.recv_slot.cq.reserve_bit().ok()?);
                core.recv_slot.cq.attach_source(bit, Arc::new(RxQueueSource { port, core: core.clone() }));
                Some(vacant.insert(RxQueue { core, bit, waiting: VecDeque::new(), spare: Vec::new() }))
            }
        }
    }

    fn remove(&mut self, qpn: u32) {
        if let Some(rx_queue) = self.by_qpn.remove(&qpn) {
            rx_queue.core.recv_slot.cq.detach(rx_queue.bit);
        }
    }
}

/// Source of completions for datagrams from other hosts to one queue pair.
struct RxQueueSource {
    port: Arc<Port>,
    core: Arc<DatagramCore>,
}

impl RxQueueSource {
    fn deliver(&self, state: &mut State, wc: &mut [Wc]) -> usize {
        let Some(rx_queue) = state.rx_queues.by_qpn.get_mut(&self.core.qpn) else { return 0 };
        let mut delivered = 0;
        while delivered < wc.len() {
            let Some(WaitingDatagram { header, src_qpn, imm_be, payload }) = rx_queue.waiting.pop_front()
            else {
                break;
            };
            let datagram = RemoteDatagram { header: &header, src_qpn, imm_be, payload: &payload };
            // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, and not
            // while it works on the receives, as `deliver_remote` requires.
            if let Some(completion) = unsafe { self.core.deliver_remote(&datagram) } {
                wc[delivered] = completion;
                delivered += 1;
            }
            rx_queue.spare.push(payload);
        }
        delivered
    }
}

impl Source for RxQueueSource {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        self.port.poll(|state| self.deliver(state, wc))
    }

    /// Always `true`, because polling it also polls the port for packets.
    fn may_have_completions(&self) -> bool {
        true
    }
}
