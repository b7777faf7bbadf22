//! The requester: cuts send requests into packets and sends one packet per call.

use farcall_verbs::{Access, QpState, QpType, WcStatus};

use super::Qp;
use super::send_queue::{ActiveRequest, SendRequest, Work};
use crate::adapter::{Adapter, Payload};
use crate::packet::{Deth, Operation, Packet, Reth, Segment};

/// State of the next packet.
enum NextPacket {
    /// Nothing can be sent.
    Wait,
    /// The next request cannot be executed at this end.
    Fail(WcStatus),
    /// A packet of a request that has begun.
    Packet(ActiveRequest),
}

/// A packet after which this number of packets has requested no acknowledgement requests one.
const PACKETS_PER_ACK: u32 = 16;

impl<S, R> Qp<S, R> {
    /// Queues a send request that was checked at posting. The caller must call [`Qp::doorbell`] afterwards.
    pub fn post_send(&mut self, request: SendRequest, posted: S) {
        self.sends.push(request, posted);
    }

    /// Handles posted send requests: in an error state they are flushed. Returns whether the caller should call
    /// [`Qp::transmit`].
    pub fn doorbell(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        let is_flushed = self.state.accepts_sends() && !self.runs();
        if is_flushed {
            self.flush_sends(adapter);
        }
        !is_flushed
    }

    /// Sends the next packet, if there is one that may be sent. Returns whether one was sent, in which case there may
    /// be more.
    pub fn transmit(&mut self, adapter: &mut impl Adapter<S, R>) -> bool {
        if !self.runs() || self.timers.is_rnr_waiting() {
            return false;
        }
        let is_last = match self.next_packet(adapter) {
            NextPacket::Wait => return false,
            NextPacket::Fail(status) => return self.fail_locally(adapter, status),
            NextPacket::Packet(_) if !self.is_due(adapter) => return false,
            NextPacket::Packet(begun) => match self.transmit_packet(adapter, begun) {
                Some(next) => {
                    if self.congestion.is_paced() {
                        self.count_sent(adapter, self.payload_bytes());
                    }
                    self.sends.packet = next;
                    next >= begun.packets
                }
                None => return self.fail_locally(adapter, WcStatus::LOC_PROT_ERR),
            },
        };
        if is_last {
            self.sends.at += 1;
            self.sends.packet = 0;
        }
        if self.config.transport == QpType::Rc {
            if self.congestion.is_paced() {
                // The response may arrive long after that to the first outstanding packet.
                self.stop_ack_timer(adapter);
            }
            self.start_ack_timer(adapter);
        } else if is_last {
            // Unreliable requests have no response: they complete when sent.
            self.end_first(adapter, WcStatus::SUCCESS);
        }
        true
    }

    fn next_packet(&mut self, adapter: &impl Adapter<S, R>) -> NextPacket {
        let Some(queued) = self.sends.queue.get(self.sends.at) else { return NextPacket::Wait };
        if queued.failed.is_some() {
            return NextPacket::Wait;
        }
        let is_read = matches!(queued.request.work, Work::Read(_));
        let begun = match queued.begun {
            Some(begun) => begun,
            None if !self.may_begin(&queued.request) => return NextPacket::Wait,
            None => match self.local_failure(adapter, &queued.request, &queued.posted) {
                Some(status) => return NextPacket::Fail(status),
                None => self.sends.begin(u64::from(self.settings.mtu.bytes())),
            },
        };
        let must_wait =
            (is_read && self.waits_for_data(begun)) || self.is_window_full(begun.psn.plus(self.sends.packet));
        if must_wait { NextPacket::Wait } else { NextPacket::Packet(begun) }
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

    /// Returns whether the next part of a long READ must wait: with it more data than the window would be in flight, or
    /// the peer accepts no further READs.
    fn waits_for_data(&self, begun: ActiveRequest) -> bool {
        let part_packets = self.config.read_packets_max;
        let left = self.sends.packet.saturating_sub(begun.responses);
        let reads = || self.sends.reads_in_flight(part_packets);
        let would_be_too_much = || self.window.is_full(left.saturating_add(part_packets - 1));
        left > 0 && (would_be_too_much() || reads() >= usize::from(self.settings.max_rd_atomic))
    }

    /// Returns whether the window of unacknowledged packets is full for this packet. Unreliable packets have no window.
    fn is_window_full(&self, psn: crate::Psn) -> bool {
        let ahead = psn.distance_from(self.sends.unacknowledged);
        self.config.transport == QpType::Rc && self.window.is_full(ahead)
    }

    /// Returns the failure of a request before its first packet.
    fn local_failure(
        &self,
        adapter: &impl Adapter<S, R>,
        request: &SendRequest,
        posted: &S,
    ) -> Option<WcStatus> {
        // Operations that the transport does not define; mlx5 reports them in this way, too.
        if request.returns_data() && self.config.transport != QpType::Rc {
            return Some(WcStatus::LOC_QP_OP_ERR);
        }
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
        // The destination of returned data is checked when it arrives: as on mlx5, a refusal by the target takes
        // precedence.
        let is_allowed = request.returns_data() || adapter.check(posted, request.len_bytes, Access::empty());
        (!is_allowed).then_some(WcStatus::LOC_PROT_ERR)
    }

    /// Returns the payload length of the next packet.
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

    /// Sends the next packet; its payload is gathered now. Returns the index of the following packet of its request,
    /// for a READ that of the next response to request. Returns `None` if the payload must not be read.
    fn transmit_packet(&self, adapter: &mut impl Adapter<S, R>, begun: ActiveRequest) -> Option<u32> {
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
                // Data that has arrived is not requested again.
                let first = index.max(begun.responses);
                let done = u64::from(first) * mtu_bytes;
                // The boundaries of parts are fixed: a responder repeats no more than was requested at once.
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

    /// Fails the next request, which cannot be executed at this end.
    fn fail_locally(&mut self, adapter: &mut impl Adapter<S, R>, status: WcStatus) -> bool {
        self.sends.queue[self.sends.at].failed = Some(status);
        self.fail_if_first(adapter);
        false
    }

    /// Ends a request that failed at this end once it is the first.
    pub(super) fn fail_if_first(&mut self, adapter: &mut impl Adapter<S, R>) {
        if let Some(status) = self.sends.queue.front().and_then(|queued| queued.failed) {
            self.fail_first(adapter, status);
        }
    }
}
