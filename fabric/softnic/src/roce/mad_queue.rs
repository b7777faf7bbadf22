//! Received management datagrams: those for queue pair 1 that wait for the connection manager.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::sync::Arc;

use farcall_shm::fork::DontForkFd;
use farcall_wire::cm::{MESSAGE_BYTES, Mad, host_network};
use farcall_wire::{Deth, Operation, Packet};

use super::counters::PortCounters;
use super::path::Path;

/// Number of the queue pair (volume 1, section 3.5.10).
pub(super) const QPN: u32 = 1;
/// Q_Key of the queue pair (section 10.2.5).
pub(super) const QKEY: u32 = 0x8001_0000;
/// Maximum number of datagrams that wait for the connection manager. Peers retransmit those that are dropped.
const QUEUED_MAX: usize = 256;

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

/// Received datagrams for queue pair 1.
pub(super) struct MadQueue {
    waiting: VecDeque<ManagementDatagram>,
    arrived: Arc<DontForkFd>,
}

impl MadQueue {
    pub(super) fn new(arrived: Arc<DontForkFd>) -> Self {
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

    /// Returns the next datagram. If this process does not hold queue pair 1 any more, the datagrams are discarded.
    pub(super) fn take(&mut self, is_held: bool) -> Option<ManagementDatagram> {
        if !is_held {
            self.waiting.clear();
        }
        let taken = self.waiting.pop_front();
        if taken.is_none() {
            let _ = rustix::io::read(&*self.arrived, &mut [0; 8]);
        }
        taken
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
    use farcall_verbs::QpType;
    use farcall_wire::Psn;
    use farcall_wire::cm::Message;
    use rustix::event::{EventfdFlags, eventfd};

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
