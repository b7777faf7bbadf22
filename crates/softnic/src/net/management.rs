//! Queue pair 1: management datagrams to and from other hosts, for a connection manager in this process.
//!
//! The processes of a user share the port, and with it queue pair 1. Each may send; one has the datagrams that come, as
//! long as it lives, and any other may claim them then.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use farcall_shm::fork::DontForkFd;
use farcall_verbs::{AhAttr, Gid, QpType, Result};
use farcall_wire::cm::{MESSAGE_BYTES, Mad};
use farcall_wire::{Deth, Operation, Packet, Psn};
use rustix::event::{EventfdFlags, eventfd};

use super::counters::PortCounters;
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
        Ok(Self { host, port, arrived })
    }

    /// Which of the processes that share the port this one is.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.port.slot()
    }

    /// Takes what comes for queue pair 1, unless another process that lives does. Whether it is ours.
    ///
    /// # Errors
    /// If another process does not let us change who has what.
    pub fn claim(&self) -> Result<bool> {
        self.port.claim(QPN)
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

    /// The next datagram that came.
    #[must_use]
    pub fn take(&self) -> Option<ManagementDatagram> {
        self.port.with(|state| {
            let arrivals = state.management.as_mut()?;
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

    /// A packet of a stranger who may send; `path` is as it came.
    pub(super) fn take_in(&mut self, counters: &PortCounters, path: Path, packet: &Packet, payload: &[u8]) {
        if Mad::decode(payload).is_err() {
            return counters.dropped_malformed.increment();
        }
        let is_managed = matches!(packet.operation, Operation::Datagram(Deth { qkey: QKEY, .. }, None));
        let (true, Ok(bytes)) = (is_managed && self.waiting.len() < WAITING_MAX, payload.try_into()) else {
            return counters.dropped_unwanted.increment();
        };
        counters.packets_received.increment();
        self.waiting.push_back(ManagementDatagram { src: path.src, dst: path.dst, bytes });
        // Its count is far below what would make it block.
        let _ = rustix::io::write(&*self.arrived, &1_u64.to_ne_bytes());
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
            arrivals.take_in(&counters, path, &datagram(QKEY), garbage);
        }
        assert_eq!((counters.dropped_malformed.get(), arrivals.waiting.len()), (5, 0));
        arrivals.take_in(&counters, path, &datagram(QKEY ^ 1), &bytes);
        assert_eq!((counters.dropped_unwanted.get(), arrivals.waiting.len()), (1, 0));
        for _ in 0..WAITING_MAX + 7 {
            arrivals.take_in(&counters, path, &datagram(QKEY), &bytes);
        }
        assert_eq!((counters.dropped_unwanted.get(), arrivals.waiting.len()), (8, WAITING_MAX));
        let expected = ManagementDatagram { src: path.src, dst: path.dst, bytes };
        assert_eq!(arrivals.waiting.pop_front(), Some(expected));
    }
}
