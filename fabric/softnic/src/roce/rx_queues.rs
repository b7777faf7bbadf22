//! Datagrams from other hosts that wait for their receivers.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use farcall_verbs::{ROUTE_HEADER_BYTES, Result, Wc};
use farcall_wire::{Deth, Operation, Packet};

use super::counters::PortCounters;
use super::path::Path;
use crate::process::QpnMap;
use crate::process::addresses::{are_devices_named, listed_peers};
use crate::shm_transport::ShmTransport;
use crate::shm_transport::cq::Source;
use crate::shm_transport::datagram::{DatagramCore, RemoteDatagram};

/// Maximum number of datagrams that wait for one queue pair: the number of receives of a busy receiver.
const QUEUED_MAX: usize = 1024;

/// Returns a source of completions that calls [`RxQueues::deliver`] for a queue pair; `None` if the port is closed.
pub(super) type MakeSource = fn(&ShmTransport, Arc<DatagramCore>) -> Option<Arc<dyn Source>>;

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
    make_source: MakeSource,
    by_qpn: QpnMap<RxQueue>,
    peers: Option<Vec<IpAddr>>,
    are_devices_named: bool,
}

impl RxQueues {
    /// # Errors
    /// Returns an error if the list of peers is malformed.
    pub(super) fn new(make_source: MakeSource) -> Result<Self> {
        let peers = listed_peers("open the RoCEv2 port")?;
        Ok(Self { make_source, by_qpn: QpnMap::default(), peers, are_devices_named: are_devices_named() })
    }

    /// Returns whether packets may arrive on `path`, which is given as seen by the packet.
    pub(super) fn admits(&self, shm: &ShmTransport, path: Path) -> bool {
        let is_peer = |peers: &Vec<IpAddr>| peers.contains(&path.src.to_canonical());
        self.peers.as_ref().is_none_or(is_peer)
            && (!self.are_devices_named || shm.core.process.is_address(path.dst))
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
                let source = (self.make_source)(shm, core.clone())?;
                let bit = core.recv_slot.cq.reserve_bit().ok()?;
                core.recv_slot.cq.attach_source(bit, source);
                Some(vacant.insert(RxQueue { core, bit, waiting: VecDeque::new(), spare: Vec::new() }))
            }
        }
    }

    pub(super) fn remove(&mut self, qpn: u32) {
        if let Some(rx_queue) = self.by_qpn.remove(&qpn) {
            rx_queue.core.recv_slot.cq.detach(rx_queue.bit);
        }
    }

    /// Completes receives of a queue pair by its datagrams.
    ///
    /// # Safety
    /// Only the thread that polls the receive completion queue may call this, and not while it works on the receives.
    pub(super) unsafe fn deliver(&mut self, core: &DatagramCore, wc: &mut [Wc]) -> usize {
        let Some(rx_queue) = self.by_qpn.get_mut(&core.qpn) else { return 0 };
        let mut delivered = 0;
        while delivered < wc.len() {
            let Some(WaitingDatagram { header, src_qpn, imm_be, payload }) = rx_queue.waiting.pop_front()
            else {
                break;
            };
            let datagram = RemoteDatagram { header: &header, src_qpn, imm_be, payload: &payload };
            // SAFETY: the contract of this function is that of `deliver_remote`.
            if let Some(completion) = unsafe { core.deliver_remote(&datagram) } {
                wc[delivered] = completion;
                delivered += 1;
            }
            rx_queue.spare.push(payload);
        }
        delivered
    }
}
