//! Queue pair 1: management datagrams to and from other hosts, for a connection manager in this process.
//!
//! The processes of a user share the port, and with it queue pair 1. Each may send; one, the holder, has the datagrams
//! that come as long as it runs ([`super::management_claim`]).

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
use crate::host::Host;

/// The number of the queue pair (volume 1, section 3.5.10).
pub(super) const QPN: u32 = 1;
/// Its Q_Key (section 10.2.5).
const QKEY: u32 = 0x8001_0000;
/// Datagrams that wait for the connection manager at most; who sent more of them sends them again.
const WAITING_MAX: usize = 256;

const OP: &str = "open queue pair 1";

/// A management datagram that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// The address that it came from.
    pub src: Ipv6Addr,
    /// The address of ours that it was sent to.
    pub dst: Ipv6Addr,
    /// What it says.
    pub bytes: [u8; MESSAGE_BYTES],
}

/// Queue pair 1 as a connection manager uses it.
pub struct Management {
    host: Arc<Host>,
    port: Arc<Port>,
    arrived: Arc<DontForkFd>,
    claim: Mutex<Claim>,
}

impl Management {
    /// Opens the port of this process.
    ///
    /// # Errors
    /// If the port cannot be opened, or `FARCALL_WAY` forbids other hosts.
    pub fn open() -> Result<Self> {
        let host = Host::get()?;
        host.process.require_abroad(OP)?;
        let port = Port::open(&host)?;
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail(OP))?;
        let arrived = Arc::new(DontForkFd::new(count));
        port.with(|state| state.management = Some(Arrivals::new(arrived.clone())));
        Ok(Self { host, port, arrived, claim: Mutex::default() })
    }

    /// Which of the processes that share the port this one is.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.port.slot()
    }

    /// Takes what comes for queue pair 1, unless another process that runs does; returns whether it is ours. To be called
    /// again and again: by its holder, which shows so that it runs, four times a second or more often; by others, which
    /// find out so that it does not, every 50 ms.
    ///
    /// # Errors
    /// If another process does not let us change who has what.
    pub fn claim(&self) -> Result<bool> {
        self.port.claim(&mut self.claim.lock())
    }

    /// Becomes readable when a datagram comes.
    #[must_use]
    pub fn arrived(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Sends a datagram to queue pair 1 of another host. It may be lost.
    ///
    /// # Errors
    /// If there is no way to the address, or it must not be taken.
    pub fn send(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> Result<()> {
        let attr = AhAttr { dgid: Gid(dst.octets()), port_num: 1, ..AhAttr::default() };
        let path = Path::to("send a management datagram", &self.host.process, &attr)?;
        self.port.with(|state| {
            let packet = Packet {
                transport: QpType::Ud,
                operation: Operation::Datagram(Deth { qkey: QKEY, src_qpn: QPN }, None),
                solicited: false,
                ack_req: false,
                dest_qpn: QPN,
                psn: Psn::default(),
            };
            state.add_bytes(path, &packet, bytes);
        });
        Ok(())
    }

    /// The connection manager refused a connection that another host asked for: one too many.
    pub fn count_refused(&self) {
        self.port.with(|state| state.counters().connections_refused.increment());
    }

    /// The next datagram that came. Nothing comes to a process that is not the holder any more: what had come is sent
    /// again, to the holder.
    #[must_use]
    pub fn take(&self) -> Option<ManagementDatagram> {
        let is_held = self.port.holds(&self.claim.lock());
        self.port.with(|state| {
            let arrivals = state.management.as_mut()?;
            if !is_held {
                arrivals.waiting.clear();
            }
            let taken = arrivals.waiting.pop_front();
            if taken.is_none() {
                let _ = rustix::io::read(&*self.arrived, &mut [0; 8]);
            }
            taken
        })
    }
}

/// What came for queue pair 1.
pub(super) struct Arrivals {
    waiting: VecDeque<ManagementDatagram>,
    arrived: Arc<DontForkFd>,
}

impl Arrivals {
    fn new(arrived: Arc<DontForkFd>) -> Self {
        Self { waiting: VecDeque::new(), arrived }
    }

    /// A packet of an unknown sender; `path` is as it came. `is_admitted` says whether its sender may send here.
    pub(super) fn take_in(
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
        let (true, Ok(bytes)) = (is_managed && self.has_room_for(path.src), payload.try_into()) else {
            return counters.dropped_unwanted.increment();
        };
        if !is_admitted() {
            return counters.dropped_local.increment();
        }
        counters.packets_received.increment();
        self.waiting.push_back(ManagementDatagram { src: path.src, dst: path.dst, bytes });
        // Its count is far below what would make it block.
        let _ = rustix::io::write(&*self.arrived, &1_u64.to_ne_bytes());
    }

    /// Returns whether a host may have one more datagram wait: it may have as many as there are free places, so that a
    /// host that sends without end leaves places for the others.
    fn has_room_for(&self, src: Ipv6Addr) -> bool {
        let free = WAITING_MAX - self.waiting.len();
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
    fn of_what_strangers_send_messages_alone_are_kept_and_not_too_many() {
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut arrivals = Arrivals::new(Arc::new(DontForkFd::new(count)));
        let counters = PortCounters::default();
        let path = Path { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
        let mad = Mad { transaction_id: 1, local_comm_id: 2, remote_comm_id: 3, message: Message::Rtu };
        let bytes = mad.encode();
        let mut foreign = bytes;
        foreign[0] ^= 1;
        for garbage in [&[][..], &bytes[..255], &[bytes, bytes].concat(), &foreign, &[0xFF; 256]] {
            arrivals.take_in(&counters, path, (&datagram(QKEY), garbage), || true);
        }
        assert_eq!((counters.dropped_malformed.get(), arrivals.waiting.len()), (5, 0));
        arrivals.take_in(&counters, path, (&datagram(QKEY ^ 1), &bytes), || true);
        assert_eq!((counters.dropped_unwanted.get(), arrivals.waiting.len()), (1, 0));
        arrivals.take_in(&counters, path, (&datagram(QKEY), &bytes), || false);
        assert_eq!((counters.dropped_local.get(), arrivals.waiting.len()), (1, 0));
        for _ in 0..WAITING_MAX + 7 {
            arrivals.take_in(&counters, path, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(arrivals.waiting.len(), WAITING_MAX / 2, "of one host");
        // Addresses of one network of IPv6 are one host's.
        for last in 1..100 {
            let path = Path { src: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), ..path };
            arrivals.take_in(&counters, path, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(arrivals.waiting.len(), WAITING_MAX * 3 / 4);
        for last in 1..=u8::MAX {
            let src = std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped();
            arrivals.take_in(&counters, Path { src, ..path }, (&datagram(QKEY), &bytes), || true);
        }
        assert_eq!(arrivals.waiting.len(), WAITING_MAX);
        let expected = ManagementDatagram { src: path.src, dst: path.dst, bytes };
        assert_eq!(arrivals.waiting.pop_front(), Some(expected));
    }
}
