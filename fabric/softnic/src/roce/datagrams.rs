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

use farcall_verbs::{QpType, ROUTE_HEADER_BYTES, Result, Sge, Wc};
use farcall_wire::{Deth, Operation, Packet, Psn};

use super::counters::PortCounters;
use super::path::Path;
use super::port::Port;
use super::state::State;
use crate::process::QpnMap;
use crate::process::addresses::{are_devices_named, listed_peers};
use crate::shm_transport::ShmTransport;
use crate::shm_transport::cq::Source;
use crate::shm_transport::datagram::{DatagramCore, Foreign};

/// Maximum number of datagrams that wait for one queue pair: the number of receives of a busy receiver.
const WAITING_MAX: usize = 1024;

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
pub(crate) struct NetDatagrams {
    port: Arc<Port>,
    qpn: u32,
    next_psn: Psn,
    has_unsent: bool,
}

impl NetDatagrams {
    /// Opens the port.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened.
    pub(crate) fn open(shm: &Arc<ShmTransport>, qpn: u32) -> Result<Self> {
        let port = Port::open(shm)?;
        port.steer(qpn)?;
        Ok(Self { port, qpn, next_psn: Psn::default(), has_unsent: false })
    }

    /// Prepares a datagram whose form was checked. [`NetDatagrams::ring`] sends it.
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
    pub(crate) fn ring(&mut self) {
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
        tracing::warn!("no datagrams come from other hosts: {error}");
    }
}

/// Discards the datagrams that wait for a datagram queue pair, which accepts none any more.
pub(crate) fn forget(shm: &ShmTransport, qpn: u32) {
    if let Some(port) = Port::opened(shm) {
        port.with(|state| state.inlets.remove(qpn));
    }
}

/// A datagram that waits for its receiver.
struct Waiting {
    header: [u8; ROUTE_HEADER_BYTES],
    src_qpn: u32,
    imm_be: Option<u32>,
    payload: Vec<u8>,
}

/// Received datagrams of one queue pair.
struct Inlet {
    core: Arc<DatagramCore>,
    /// Readiness bit at the receive completion queue.
    bit: u32,
    waiting: VecDeque<Waiting>,
    /// Buffers of datagrams that were delivered.
    spare: Vec<Vec<u8>>,
}

/// Result of a packet that is for no connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Taken,
    /// No queue pair here has the number.
    Unknown,
    /// Its source host or local device is not in the configured lists.
    Foreign,
    /// Its sender is a process of this host that is not authorized to send over RoCEv2.
    Local,
    /// The queue pair accepts no datagrams, or not with this Q_Key, or has too many unpolled ones.
    Unwanted,
}

/// Received datagrams of a port's datagram queue pairs, and the hosts that may send them.
pub(super) struct Inlets {
    by_qpn: QpnMap<Inlet>,
    peers: Option<Vec<IpAddr>>,
    are_devices_named: bool,
}

impl Inlets {
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
    pub(super) fn take_in(
        &mut self,
        shm: &Arc<ShmTransport>,
        counters: &PortCounters,
        (path, len_bytes): (Path, usize),
        (packet, payload): (&Packet, &[u8]),
        is_admitted: impl FnOnce() -> bool,
    ) -> Came {
        let Operation::Datagram(Deth { qkey, src_qpn }, imm_be) = packet.operation else {
            return Came::Unknown;
        };
        if !self.admits(shm, path) {
            return Came::Foreign;
        }
        let Some(core) = shm.datagrams(packet.dest_qpn) else {
            return Came::Unknown;
        };
        if !core.board.accepts(qkey) {
            return Came::Unwanted;
        }
        if !is_admitted() {
            return Came::Local;
        }
        let Some(inlet) = self.inlet(shm, core).filter(|inlet| inlet.waiting.len() < WAITING_MAX) else {
            return Came::Unwanted;
        };
        counters.packets_received.increment();
        let mut room = inlet.spare.pop().unwrap_or_default();
        room.clear();
        room.extend_from_slice(payload);
        let header = path.route_header(len_bytes);
        inlet.waiting.push_back(Waiting { header, src_qpn, imm_be, payload: room });
        inlet.core.recv_slot.cq.announce(inlet.bit, packet.solicited);
        Came::Taken
    }

    /// Returns the received datagrams of a queue pair; `None` if its completion queue has no free bit.
    fn inlet(&mut self, shm: &Arc<ShmTransport>, core: Arc<DatagramCore>) -> Option<&mut Inlet> {
        match self.by_qpn.entry(core.qpn) {
            Entry::Occupied(inlet) => Some(inlet.into_mut()),
            Entry::Vacant(vacant) => {
                let (port, bit) = (Port::opened(shm)?, core.recv_slot.cq.reserve_bit().ok()?);
                core.recv_slot.cq.attach_source(bit, Arc::new(Arrivals { port, core: core.clone() }));
                Some(vacant.insert(Inlet { core, bit, waiting: VecDeque::new(), spare: Vec::new() }))
            }
        }
    }

    fn remove(&mut self, qpn: u32) {
        if let Some(inlet) = self.by_qpn.remove(&qpn) {
            inlet.core.recv_slot.cq.detach(inlet.bit);
        }
    }
}

/// Source of completions for datagrams from other hosts to one queue pair.
struct Arrivals {
    port: Arc<Port>,
    core: Arc<DatagramCore>,
}

impl Arrivals {
    fn take(&self, state: &mut State, wc: &mut [Wc]) -> usize {
        let Some(inlet) = state.inlets.by_qpn.get_mut(&self.core.qpn) else { return 0 };
        let mut taken = 0;
        while taken < wc.len() {
            let Some(Waiting { header, src_qpn, imm_be, payload }) = inlet.waiting.pop_front() else { break };
            let datagram = Foreign { header: &header, src_qpn, imm_be, payload: &payload };
            // SAFETY: `Source::poll` is called only by the thread that polls the receive completion queue, and not
            // while it works on the receives, as `deliver_foreign` requires.
            if let Some(completion) = unsafe { self.core.deliver_foreign(&datagram) } {
                wc[taken] = completion;
                taken += 1;
            }
            inlet.spare.push(payload);
        }
        taken
    }
}

impl Source for Arrivals {
    fn poll(&self, wc: &mut [Wc]) -> usize {
        self.port.poll(|state| self.take(state, wc))
    }

    /// Always `true`, because polling it also polls the port for packets.
    fn may_have_completions(&self) -> bool {
        true
    }
}
