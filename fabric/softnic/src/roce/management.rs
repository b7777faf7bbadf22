//! Queue pair 1: management datagrams to and from other hosts, for a connection manager in this process.
//!
//! The processes of a user share the port, and with it queue pair 1. Each may send. One of them, the holder, receives
//! the datagrams as long as it runs ([`super::management_claim`]).

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use farcall_shm::Mutex;
use farcall_shm::fork::DontForkFd;
use farcall_verbs::{AhAttr, Gid, QpType, Result};
use farcall_wire::cm::MESSAGE_BYTES;
use farcall_wire::{Deth, Operation, Packet, Psn};
use rustix::event::{EventfdFlags, eventfd};

use super::mad_queue::{MadQueue, ManagementDatagram, QKEY, QPN};
use super::management_claim::Claim;
use super::path::Path;
use super::port::Port;
use super::socket::fail;
use crate::shm_transport::ShmTransport;

const OP: &str = "open queue pair 1";

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
        shm.core.process.require_remote_allowed(OP)?;
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
        let path = Path::to("send a management datagram", &self.shm.core.process, &attr)?;
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
        self.port.with(|state| state.management.as_mut()?.take(is_held))
    }
}
