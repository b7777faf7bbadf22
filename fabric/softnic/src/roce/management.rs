//! Queue pair 1: management datagrams to and from other hosts, for a connection manager in this process.
//!
//! The processes of a user share the port, and with it queue pair 1. Each may send. One of them, the holder, receives
//! the datagrams as long as it runs ([`super::management_claim`]).

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use farcall_shm::Mutex;
use farcall_shm::fork::DontForkFd;
use farcall_verbs::{AhAttr, Gid, QpType, Result};
use farcall_wire::cm::{MESSAGE_BYTES, Mad, host_network};
use farcall_wire::{Deth, Operation, Packet, Psn};
use rustix::event::{EventfdFlags, eventfd};

use super::counters::PortCounters;
use super::management_claim::Claim;
use super::path::Path;
use super::port::Port;
use super::socket::fail;
use crate::shm_transport::ShmTransport;

/// Number of the queue pair (volume 1, section 3.5.10).
pub(super) const QPN: u32 = 1;
/// Q_Key of the queue pair (section 10.2.5).
const QKEY: u32 = 0x8001_0000;
/// Maximum number of datagrams that wait for the connection manager. Peers retransmit those that are dropped.
const QUEUED_MAX: usize = 256;

const OP: &str = "open queue pair 1";

/// A received management datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address: one of this host.
    pub dst: Ipv6Addr,
    /// Contents of the message.
    pub bytes: [u8; MESSAGE_BYTES],
}

/// Queue pair 1 for a connection manager.
pub struct Management {
    shm: Arc<ShmTransport>,
    port: Arc<Port>,
    arrived: Arc<DontForkFd>,
    claim: Mutex<Claim>,
}

impl Management {
    /// Opens the port of this process.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, or if `FARCALL_TRANSPORT` forbids other hosts.
    pub fn open() -> Result<Self> {
        let shm = ShmTransport::get()?;
        shm.process.require_remote_allowed(OP)?;
        let port = Port::open(&shm)?;
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail(OP))?;
        let arrived = Arc::new(DontForkFd::new(count));
        port.with(|state| state.management = Some(MadQueue::new(arrived.clone())));
        Ok(Self { shm, port, arrived, claim: Mutex::default() })
    }

    /// Returns the index of this process among those that share the port.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.port.slot()
    }

    /// Claims the datagrams for queue pair 1, unless another running process holds it. Returns whether this process is
    /// the holder. Must be called repeatedly: by the holder at least four times a second, which indicates that it runs;
    /// by other processes every 50 ms, which allows them to detect that the holder does not.
    ///
    /// # Errors
    /// Returns an error if another process does not release the lock of the table.
    pub fn claim(&self) -> Result<bool> {
        self.port.claim(&mut self.claim.lock())
    }

    /// Returns a descriptor that becomes readable when a datagram arrives.
    #[must_use]
    pub fn arrived(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Sends a datagram to queue pair 1 of another host. It may be lost.
    ///
    /// # Errors
    /// Returns an error if there is no route to the address, or if the configuration forbids it.
    pub fn send(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> Result<()> {
        self.send_if(dst, bytes, || true).map(drop)
    }

    /// Sends a reply that depends on the state of this host, and not on a connection of this process: only the holder
    /// may send it. Returns `false` and sends nothing if this process is no longer the holder.
    ///
    /// A process that is stopped between the check, which is the last step before the packet is built, and the system
    /// call still sends its reply when it is continued. By then the peer has retransmitted its message to the new
    /// holder. The reply is the same that the new holder sends, unless a listener has appeared in the meantime. A
    /// rejection of a request that was accepted after all is ignored by a Farcall peer
    /// ([`farcall_wire::cm::CommunicationIds::matches`]).
    ///
    /// # Errors
    /// See [`Management::send`].
    pub fn send_as_holder(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> Result<bool> {
        // The lock of the claim may be held while another process changes the table, and must not delay the port.
        let claim = *self.claim.lock();
        self.send_if(dst, bytes, || self.port.holds(&claim))
    }

    /// Returns whether this process is still the holder. Must be called immediately before a received datagram has any
    /// effect outside this process.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.port.holds(&self.claim.lock())
    }

    fn send_if(
        &self,
        dst: Ipv6Addr,
        bytes: &[u8; MESSAGE_BYTES],
        may_send: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let attr = AhAttr { dgid: Gid(dst.octets()), port_num: 1, ..AhAttr::default() };
        let path = Path::to("send a management datagram", &self.shm.process, &attr)?;
        Ok(self.port.with(|state| {
            let packet = Packet {
                transport: QpType::Ud,
                operation: Operation::Datagram(Deth { qkey: QKEY, src_qpn: QPN }, None),
                solicited: false,
                ack_req: false,
                dest_qpn: QPN,
                psn: Psn::default(),
            };
            let is_sent = may_send();
            if is_sent {
                state.add_bytes(path, &packet, bytes);
            }
            is_sent
        }))
    }

    /// Counts a connection request of another host that the connection manager refused because of a limit.
    pub fn count_refused(&self) {
        self.port.with(|state| state.counters().connections_refused.increment());
    }

    /// Returns the next received datagram. Datagrams of a process that is no longer the holder are discarded, because
    /// their senders retransmit them to the new holder.
    #[must_use]
    pub fn take(&self) -> Option<ManagementDatagram> {
        let is_held = self.is_held();
        self.port.with(|state| {
            let queue = state.management.as_mut()?;
            if !is_held {
                queue.waiting.clear();
            }
            let taken = queue.waiting.pop_front();
            if taken.is_none() {
                let _ = rustix::io::read(&*self.arrived, &mut [0; 8]);
            }
            taken
        })
    }
}

/// Received datagrams for queue pair 1.
pub(super) struct MadQueue {
    waiting: VecDeque<ManagementDatagram>,
    arrived: Arc<DontForkFd>,
}

impl MadQueue {
    fn new(arrived: Arc<DontForkFd>) -> Self {
        Self { waiting: VecDeque::new(), arrived }
    }

    /// Handles a packet of an unauthenticated sender; `path` is given as seen by the packet. `is_admitted` returns
    /// whether the sender is authorized.
    pub(super) fn enqueue(
        &mut self,
        counters: &PortCounters,
        path: Path,
        (packet, payload): (&Packet, &[u8]),
        is_admitted: impl FnOnce() -> bool,
    ) {
        if Mad::decode(payload).is_err() {
            return counters.dropped_malformed.increment();
        }
        let is_managed = matches!(packet.operation, Operation::Datagram(Deth { qkey: QKEY, .. }, None));
        let (true, Ok(bytes)) = (is_managed && self.has_space_for(path.src), payload.try_into()) else {
            return counters.dropped_unwanted.increment();
        };
        if !is_admitted() {
            return counters.dropped_local.increment();
        }
        counters.packets_received.increment();
        self.waiting.push_back(ManagementDatagram { src: path.src, dst: path.dst, bytes });
        // The counter is far below the value at which a write would block.
        let _ = rustix::io::write(&*self.arrived, &1_u64.to_ne_bytes());
    }

    /// Returns whether one more datagram of a host may wait. A host may have as many as there are free entries, so that
    /// a host that sends continuously leaves entries for others.
    fn has_space_for(&self, src: Ipv6Addr) -> bool {
        let free = QUEUED_MAX - self.waiting.len();
        let of_source =
            self.waiting.iter().filter(|waiting| host_network(waiting.src) == host_network(src)).count();
        of_source < free
    }
}

#[cfg(test)]
mod tests {
    use farcall_wire::cm::Message;

    use super::*;

    fn datagram(qkey: u32) -> Packet {
        Packet {
            transport: QpType::Ud,
            operation: Operation::Datagram(Deth { qkey, src_qpn: QPN }, None),
            solicited: false,
            ack_req: false,
            dest_qpn: QPN,
            psn: Psn::default(),
        }
    }

    #[test]
    fn queues_only_messages_and_bounds_them_per_host() {
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut queue = MadQueue::new(Arc::new(DontForkFd::new(count)));
        let counters = PortCounters::default();
        let path = Path { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
        let mad = Mad { transaction_id: 1, local_comm_id: 2, remote_comm_id: 3, message: Message::Rtu };
        let bytes = mad.encode();
        let mut other_class = bytes;
        other_class[0] ^= 1;
        for garbage in [&[][..], &bytes[..255], &[bytes, bytes].concat(), &other_class, &[0xFF; 256]] {
            queue.enqueue(&counters, path, (&datagram(QKEY), garbage), || true);
        }
        assert_eq!((counters.dropped_malformed.get(), queue.waiting.len()), (5, 0));
        queue.enqueue(&counters, path, (&datagram(QKEY ^ 1), &bytes), || true);
        assert_eq!((counters.dropped_unwanted.get(), queue.waiting.len()), (1, 0));
        queue.enqueue(&counters, path, (&datagram(QKEY), &bytes), || false);
        assert_eq!((counters.dropped_local.get(), queue.waiting.len()), (1, 0));
        for _ in 0..QUEUED_MAX + 7 {
            queue.enqueue(&counters, path, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(queue.waiting.len(), QUEUED_MAX / 2, "of one host");
        // Addresses of one IPv6 network count as one host.
        for last in 1..100 {
            let path = Path { src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), ..path };
            queue.enqueue(&counters, path, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(queue.waiting.len(), QUEUED_MAX * 3 / 4);
        for last in 1..=u8::MAX {
            let src = std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped();
            queue.enqueue(&counters, Path { src, ..path }, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(queue.waiting.len(), QUEUED_MAX);
        let expected = ManagementDatagram { src: path.src, dst: path.dst, bytes };
        assert_eq!(queue.waiting.pop_front(), Some(expected));
    }
}
