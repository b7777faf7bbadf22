//! The requester: cuts send requests into packets and sends them, one a call.

use farcall_verbs::{Access, QpState, QpType, WcStatus};

use super::Qp;
use super::send_queue::{Begun, SendRequest, Work};
use crate::adapter::{Adapter, Payload};
use crate::packet::{Deth, Operation, Packet, Reth, Segment};

/// How the next packet stands.
enum Turn {
    /// Nothing can be sent.
    Wait,
    /// The next request cannot be executed here.
    Fail(WcStatus),
    /// A packet of a request that has begun.
    Packet(Begun),
}

/// A packet that acknowledges nothing for so long asks for an acknowledgement.
const PACKETS_PER_ACK: u32 = 16;

impl<S, R> Qp<S, R> {
    /// Queues a send request whose posting was checked. [`Qp::ring`] follows.
    pub fn post_send(&mut self, request: SendRequest, posted: S) {
        self.sends.push(request, posted);
    }

    /// Send requests were posted. Whether [`Qp::transmit`] should follow; in an error state they are flushed at once.
    pub fn ring(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        let is_flushed = self.state.accepts_sends() && !self.runs();
        if is_flushed {
            self.flush_sends(adapter);
        }
        !is_flushed
    }

    /// Sends the next packet, if there is one and it may go. Whether one was sent: there may be more.
    pub fn transmit(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        if !self.runs() || self.timers.is_rnr_waiting() {
            return false;
        }
        let is_last = match self.turn(adapter) {
            Turn::Wait => return false,
            Turn::Fail(status) => return self.fail_here(adapter, status),
            Turn::Packet(_) if !self.is_due(adapter) => return false,
            Turn::Packet(begun) => match self.transmit_packet(adapter, begun) {
                Some(next) => {
                    if self.congestion.is_paced() {
                        self.count_sent(adapter, self.payload_bytes());
                    }
                    self.sends.packet = next;
                    next >= begun.packets
                }
                None => return self.fail_here(adapter, WcStatus::LOC_PROT_ERR),
            },
        };
        if is_last {
            self.sends.at += 1;
            self.sends.packet = 0;
        }
        if self.config.transport == QpType::Rc {
            if self.congestion.is_paced() {
                // The answer may come long after that to the first packet on its way.
                self.stop_ack_timer(adapter);
            }
            self.start_ack_timer(adapter);
        } else if is_last {
            // Nothing answers: what is sent is over.
            self.end_first(adapter, WcStatus::SUCCESS);
        }
        true
    }

    fn turn(&mut self, adapter: &impl Adapter<S, R>) -> Turn {
        let Some(queued) = self.sends.queue.get(self.sends.at) else { return Turn::Wait };
        if queued.failed.is_some() {
            return Turn::Wait;
        }
        let is_read = matches!(queued.request.work, Work::Read(_));
        let begun = match queued.begun {
            Some(begun) => begun,
            None if !self.may_begin(&queued.request) => return Turn::Wait,
            None => match self.local_failure(adapter, &queued.request, &queued.posted) {
                Some(status) => return Turn::Fail(status),
                None => self.sends.begin(u64::from(self.settings.mtu.bytes())),
            },
        };
        let must_wait =
            (is_read && self.waits_for_data(begun)) || self.is_window_full(begun.psn.plus(self.sends.packet));
        if must_wait { Turn::Wait } else { Turn::Packet(begun) }
    }

    fn may_begin(&self, request: &SendRequest) -> bool {
        let must_wait_for_reads = || {
            let reads = self.sends.reads_in_flight(self.config.read_packets_max);
            let depth = usize::from(self.settings.max_rd_atomic);
            (request.is_fenced && reads > 0) || (request.returns_data() && depth > 0 && reads >= depth)
        };
        self.state == QpState::Rts
            && !self.is_window_full(self.sends.next_psn)
            && !((request.is_fenced || request.returns_data()) && must_wait_for_reads())
    }

    /// Whether a long READ asks for its next part later: with it more data than the window would be on the way, or the
    /// peer keeps no more READs.
    fn waits_for_data(&self, begun: Begun) -> bool {
        let part_packets = self.config.read_packets_max;
        let left = self.sends.packet.saturating_sub(begun.answers);
        let reads = || self.sends.reads_in_flight(part_packets);
        let would_be_too_much = || self.window.is_full(left.saturating_add(part_packets - 1));
        left > 0 && (would_be_too_much() || reads() >= usize::from(self.settings.max_rd_atomic))
    }

    /// Whether too much is unacknowledged for this packet to be sent. Unreliable packets wait for nothing.
    fn is_window_full(&self, psn: crate::Psn) -> bool {
        let ahead = psn.distance_from(self.sends.unacknowledged);
        self.config.transport == QpType::Rc && self.window.is_full(ahead)
    }

    /// What makes a request fail before its first packet.
    fn local_failure(
        &self,
        adapter: &impl Adapter<S, R>,
        request: &SendRequest,
        posted: &S,
    ) -> Option<WcStatus> {
        let len_bytes_max = match self.config.transport {
            QpType::Ud => u64::from(self.config.port_mtu.bytes()),
            _ => self.config.message_bytes_max,
        };
        let is_atomic = matches!(request.work, Work::Atomic(_));
        if request.len_bytes > len_bytes_max || (is_atomic && request.len_bytes != 8) {
            return Some(WcStatus::LOC_LEN_ERR);
        }
        if request.returns_data() && self.settings.max_rd_atomic == 0 {
            return Some(WcStatus::LOC_QP_OP_ERR);
        }
        // Where data that is asked for goes is checked when it comes: a refusal of the target comes before, as on mlx5.
        let is_allowed = request.returns_data() || adapter.check(posted, request.len_bytes, Access::empty());
        (!is_allowed).then_some(WcStatus::LOC_PROT_ERR)
    }

    /// Bytes of payload in the packet whose turn it is.
    fn payload_bytes(&self) -> u64 {
        let request = &self.sends.queue[self.sends.at].request;
        match request.work {
            Work::Read(_) | Work::Atomic(_) => 0,
            Work::Datagram { .. } => request.len_bytes,
            Work::Send | Work::Write(_) => {
                let offset = u64::from(self.sends.packet) * self.mtu_bytes();
                (request.len_bytes - offset).min(self.mtu_bytes())
            }
        }
    }

    /// Sends the packet whose turn it is: its payload is gathered now. Which packet of its request is the next; of a
    /// READ, which answer must be asked for next. `None` if the payload must not be read.
    fn transmit_packet(&self, adapter: &mut impl Adapter<S, R>, begun: Begun) -> Option<u32> {
        let queued = &self.sends.queue[self.sends.at];
        let (request, send, mtu_bytes) = (&queued.request, &queued.posted, self.mtu_bytes());
        let index = self.sends.packet;
        let mut next = index + 1;
        let psn = begun.psn.plus(index);
        let offset = u64::from(index) * mtu_bytes;
        let len_bytes = (request.len_bytes - offset).min(mtu_bytes);
        let segment = Segment::new(index == 0, index + 1 == begun.packets);
        let imm_be = request.imm_be.filter(|_| segment.is_last());
        let message = |operation| Packet {
            solicited: segment.is_last() && request.is_solicited,
            ack_req: segment.is_last()
                || index % PACKETS_PER_ACK == PACKETS_PER_ACK - 1
                || self.congestion.is_paced(),
            ..self.packet(psn, operation)
        };
        let (packet, payload) = match request.work {
            Work::Send => {
                (message(Operation::Send(segment, imm_be)), Payload::Send { send, offset, len_bytes })
            }
            Work::Write(reth) => {
                let reth = segment.is_first().then_some(reth);
                let operation = Operation::Write(segment, reth, imm_be);
                (message(operation), Payload::Send { send, offset, len_bytes })
            }
            Work::Read(reth) => {
                // Data that has come is not asked for again.
                let first = index.max(begun.answers);
                let done = u64::from(first) * mtu_bytes;
                // Parts end where they always end: a responder repeats no more than it was asked for at once.
                let part_packets = self.config.read_packets_max;
                next = begun.packets.min((first / part_packets + 1).saturating_mul(part_packets));
                let end = (u64::from(next) * mtu_bytes).min(request.len_bytes);
                let addr = reth.addr.wrapping_add(done);
                let part = Reth { addr, len_bytes: (end - done) as u32, ..reth };
                (self.packet(begun.psn.plus(first), Operation::ReadRequest(part)), Payload::None)
            }
            Work::Atomic(eth) => (self.packet(psn, Operation::AtomicRequest(eth)), Payload::None),
            Work::Datagram { dest_qpn, qkey } => {
                let deth = Deth { qkey, src_qpn: self.config.qpn };
                let packet = Packet {
                    dest_qpn,
                    solicited: request.is_solicited,
                    ..self.packet(psn, Operation::Datagram(deth, request.imm_be))
                };
                (packet, Payload::Send { send, offset: 0, len_bytes: request.len_bytes })
            }
        };
        adapter.transmit(packet, payload).ok()?;
        Some(next)
    }

    /// The request whose turn it is cannot be executed at this end.
    fn fail_here(&mut self, adapter: &mut impl Adapter<S, R>, status: WcStatus) -> bool {
        self.sends.queue[self.sends.at].failed = Some(status);
        self.fail_if_first(adapter);
        false
    }

    /// A request that failed at this end fails when it is the first.
    pub(super) fn fail_if_first(&mut self, adapter: &mut impl Adapter<S, R>) {
        if let Some(status) = self.sends.queue.front().and_then(|queued| queued.failed) {
            self.fail_first(adapter, status);
        }
    }
}
