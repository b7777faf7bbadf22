//! Datagrams to and from other hosts.
//!
//! A datagram queue pair belongs to the shared-memory transport, which has its states, its receives and the order of
//! its completions. A datagram to another host is sent immediately, by its address handle, and is not acknowledged. A
//! received datagram is stored in the port ([`super::rx_queues`]) until the receive completion queue is polled, like
//! those in the ring of a sender on this host. Until the first datagram arrives that its Q_Key admits, a queue pair
//! costs nothing here, and its polls do not poll the port.

use std::sync::Arc;

use farcall_verbs::{QpType, Result, Sge, with_sources};
use farcall_wire::{Deth, Operation, Packet, Psn};

use super::path::Path;
use super::port::Port;
use crate::shm_transport::ShmTransport;

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
    if (is_open || shm.core.process.accepts_remote_datagrams())
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
