//! The send queue: requests in their order, and the position of the next packet.

use std::collections::VecDeque;

use farcall_verbs::{WcOpcode, WcStatus};

use crate::packet::{AtomicEth, AtomicOp, Reth};
use crate::psn::Psn;

/// Operation of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write(Reth),
    /// RDMA READ.
    Read(Reth),
    /// Compare and swap, or fetch and add.
    Atomic(AtomicEth),
    /// A datagram; the adapter knows its path.
    Datagram {
        /// Destination queue pair number.
        dest_qpn: u32,
        /// Q_Key of the destination.
        qkey: u32,
    },
}

/// A send request. The adapter stores its elements: see [`crate::Adapter`].
#[derive(Clone, Copy, Debug)]
pub struct SendRequest {
    /// Operation.
    pub work: Work,
    /// Total length of its elements in bytes.
    pub len_bytes: u64,
    /// Immediate data in network byte order.
    pub imm_be: Option<u32>,
    /// Whether it requests a solicited event at the peer.
    pub is_solicited: bool,
    /// Whether it begins only after all earlier READs and atomics have completed.
    pub is_fenced: bool,
}

impl SendRequest {
    pub(super) const fn returns_data(&self) -> bool {
        matches!(self.work, Work::Read(_) | Work::Atomic(_))
    }

    pub(super) const fn opcode(&self) -> WcOpcode {
        match self.work {
            Work::Send | Work::Datagram { .. } => WcOpcode::SEND,
            Work::Write(_) => WcOpcode::RDMA_WRITE,
            Work::Read(_) => WcOpcode::RDMA_READ,
            Work::Atomic(AtomicEth { op: AtomicOp::CompareSwap { .. }, .. }) => WcOpcode::COMP_SWAP,
            Work::Atomic(AtomicEth { op: AtomicOp::FetchAdd { .. }, .. }) => WcOpcode::FETCH_ADD,
        }
    }

    /// Returns the number of packets; for a READ, of its responses.
    fn packets(&self, mtu_bytes: u64) -> u32 {
        match self.work {
            Work::Atomic(_) | Work::Datagram { .. } => 1,
            Work::Send | Work::Write(_) | Work::Read(_) => self.len_bytes.div_ceil(mtu_bytes).max(1) as u32,
        }
    }
}

/// The packets of a request that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveRequest {
    /// PSN of the first packet.
    pub(super) psn: Psn,
    /// Number of packets; for a READ, of its responses.
    pub(super) packets: u32,
    /// Number of responses received, in order.
    pub(super) responses: u32,
}

impl ActiveRequest {
    pub(super) fn last(&self) -> Psn {
        self.psn.plus(self.packets - 1)
    }

    /// Returns the PSN of the next expected response.
    pub(super) fn next_response(&self) -> Psn {
        self.psn.plus(self.responses)
    }
}

/// A request in its queue.
pub(super) struct Queued<S> {
    pub(super) request: SendRequest,
    pub(super) posted: S,
    pub(super) begun: Option<ActiveRequest>,
    /// Status of a request that failed at this end; it completes when all requests before it have completed.
    pub(super) failed: Option<WcStatus>,
}

/// The send queue and the position of its requester.
pub(super) struct SendQueue<S> {
    pub(super) queue: VecDeque<Queued<S>>,
    /// Position of the next packet: index of its request in the queue, and of the packet in the request.
    pub(super) at: usize,
    pub(super) packet: u32,
    pub(super) next_psn: Psn,
    /// All packets before this one are acknowledged.
    pub(super) unacknowledged: Psn,
    /// Whether a missing response was requested again since the last response arrived.
    pub(super) has_rerequested: bool,
}

impl<S> Default for SendQueue<S> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            at: 0,
            packet: 0,
            next_psn: Psn::default(),
            unacknowledged: Psn::default(),
            has_rerequested: false,
        }
    }
}

impl<S> SendQueue<S> {
    pub(super) fn push(&mut self, request: SendRequest, posted: S) {
        self.queue.push_back(Queued { request, posted, begun: None, failed: None });
    }

    pub(super) fn start(&mut self, psn: Psn) {
        self.next_psn = psn;
        self.unacknowledged = psn;
    }

    /// Returns whether a packet with this number was sent and is not acknowledged.
    pub(super) fn is_in_flight(&self, psn: Psn) -> bool {
        psn.distance_from(self.unacknowledged) < self.next_psn.distance_from(self.unacknowledged)
    }

    /// Returns whether a request has begun and not completed.
    pub(super) fn waits(&self) -> bool {
        self.queue.front().is_some_and(|queued| queued.begun.is_some())
    }

    /// Returns whether everything sent is acknowledged, and all requested data has arrived.
    pub(super) fn has_all_responses(&self) -> bool {
        self.next_to_send() == self.unacknowledged
    }

    /// Returns the PSN of the next packet to send.
    pub(super) fn next_to_send(&self) -> Psn {
        let begun = self.queue.get(self.at).and_then(|queued| queued.begun);
        begun.map_or(self.next_psn, |begun| begun.psn.plus(self.packet))
    }

    /// Returns the number of requests for data on the wire without a complete response; each READ request requests up
    /// to `part_packets` packets.
    pub(super) fn reads_in_flight(&self, part_packets: u32) -> usize {
        let reads = self.queue.iter().enumerate().take(self.at + 1);
        let reads = reads.filter(|(_, queued)| queued.request.returns_data());
        let parts = |(at, queued): (usize, &Queued<S>)| {
            let begun = queued.begun?;
            let asked = if at < self.at { begun.packets } else { self.packet };
            Some(asked.saturating_sub(begun.responses).div_ceil(part_packets) as usize)
        };
        reads.filter_map(parts).sum()
    }

    /// Assigns packets to the next request.
    pub(super) fn begin(&mut self, mtu_bytes: u64) -> ActiveRequest {
        let queued = &mut self.queue[self.at];
        let packets = queued.request.packets(mtu_bytes);
        let begun = ActiveRequest { psn: self.next_psn, packets, responses: 0 };
        queued.begun = Some(begun);
        self.next_psn = begun.psn.plus(packets);
        self.packet = 0;
        begun
    }

    /// Removes the first request.
    pub(super) fn pop(&mut self) -> Option<Queued<S>> {
        let queued = self.queue.pop_front()?;
        if self.at == 0 {
            self.packet = 0;
        }
        self.at = self.at.saturating_sub(1);
        Some(queued)
    }

    /// Sets the next packet to send to the one with this number.
    pub(super) fn go_back_to(&mut self, psn: Psn) {
        for (at, queued) in self.queue.iter().enumerate() {
            let Some(begun) = queued.begun else { break };
            if psn.distance_from(begun.psn) < begun.packets {
                (self.at, self.packet) = (at, psn.distance_from(begun.psn));
                return;
            }
        }
    }

    /// Advances past acknowledged packets, also during a retransmission.
    pub(super) fn skip_acknowledged(&mut self) {
        if let (0, Some(begun)) = (self.at, self.queue.front().and_then(|queued| queued.begun)) {
            let acknowledged = self.unacknowledged.distance_from(begun.psn);
            if acknowledged < begun.packets && self.packet < acknowledged {
                self.packet = acknowledged;
            }
        }
    }
}
