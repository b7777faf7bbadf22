//! The responder: handles requests in the order of their sequence numbers, and checks each before it changes anything.

use std::collections::VecDeque;

use farcall_verbs::{Access, AsyncEventKind, QpState, QpType, Wc, WcFlags, WcOpcode, WcStatus};

use super::Qp;
use super::repeats::Repeats;
use super::replies::{Failure, QueuedReply, Received, Reply};
use crate::adapter::{AccessOutcome, Adapter, Event, PlacementTarget, Token};
use crate::packet::{Aeth, AtomicEth, Nak, Operation, Packet, Reth, Segment, Syndrome};
use crate::psn::Psn;

/// A posted receive and its length in bytes.
pub(super) type Receive<R> = (R, u64);

/// An incomplete message, and the number of its bytes that have arrived.
enum Incoming<R> {
    Send(Receive<R>, u64),
    Write(Reth, u64),
}

/// An executed READ or atomic: if it is repeated, the response is repeated (responder resources, IBA 9.7.5.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum Executed {
    Read { first: Psn, packets: u32 },
    Atomic { psn: Psn, token: Token, old: Option<u64> },
}

/// Maximum number of queued replies: further requests are dropped and will be retransmitted.
const REPLIES_MAX: usize = 1024;

/// State of the responder.
pub(super) struct Responder<R> {
    pub(super) expected: Psn,
    repeats: Repeats,
    /// Number of accepted messages, 24 bits.
    pub(super) msn: u32,
    /// A missing packet was reported; it is not reported again until it arrives.
    has_reported_gap: bool,
    incoming: Option<Incoming<R>>,
    /// A receive begun for an unreliable message that lost a packet; the queue pair's next message uses it. It is not
    /// returned to a shared receive queue, because payload of the void message may still be being placed into it.
    void_receive: Option<Receive<R>>,
    /// An unreliable message lost a packet: the rest of it is dropped.
    skips: bool,
    pub(super) replies: VecDeque<QueuedReply<R>>,
    pub(super) executed: VecDeque<Executed>,
    last_token: Token,
    /// Accesses in progress, in the order in which they began.
    pub(super) pending: VecDeque<Token>,
    /// The first access that was refused after it had begun.
    pub(super) refused: Option<Token>,
    is_established: bool,
    /// A request was refused: the queue pair is about to fail, and all later requests are ignored.
    has_failed: bool,
    /// PSN and reason of the refused request: if the NAK was lost, the requester repeats the request.
    pub(super) last_refusal: Option<(Psn, Nak)>,
}

impl<R> Default for Responder<R> {
    fn default() -> Self {
        Self {
            expected: Psn::default(),
            repeats: Repeats::default(),
            msn: 0,
            has_reported_gap: false,
            incoming: None,
            void_receive: None,
            skips: false,
            replies: VecDeque::new(),
            executed: VecDeque::new(),
            last_token: Token::default(),
            pending: VecDeque::new(),
            refused: None,
            is_established: false,
            has_failed: false,
            last_refusal: None,
        }
    }
}

impl<R> Responder<R> {
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = psn;
        self.repeats = Repeats::default();
    }

    /// Resets everything except the token counter.
    pub(super) fn reset(&mut self) {
        *self = Self { last_token: self.last_token, ..Self::default() };
    }

    fn expect(&mut self, psn: Psn) {
        self.repeats.accept(psn.distance_from(self.expected));
        self.expected = psn;
        self.has_reported_gap = false;
    }

    pub(super) fn next_token(&mut self) -> Token {
        self.last_token.0 += 1;
        self.last_token
    }

    pub(super) fn last_token(&self) -> Token {
        self.last_token
    }

    /// Counts an accepted request that is a message, or the last packet of one.
    fn count_message(&mut self) {
        self.msn = Psn::new(self.msn).plus(1).number();
    }

    /// Abandons all requests in progress. Returns the receives consumed for them, oldest first.
    pub(super) fn abandon(&mut self) -> Vec<R> {
        let mut receives: Vec<R> = self.replies.drain(..).filter_map(QueuedReply::into_receive).collect();
        receives.extend(self.void_receive.take().map(|(receive, _)| receive));
        if let Some(Incoming::Send((receive, _), _)) = self.incoming.take() {
            receives.push(receive);
        }
        self.pending.clear();
        self.refused = None;
        receives
    }
}

/// A packet of a SEND or WRITE.
#[derive(Clone, Copy)]
struct Part<'a> {
    psn: Psn,
    segment: Segment,
    imm_be: Option<u32>,
    solicited: bool,
    ack_req: bool,
    payload: &'a [u8],
}

impl<S, R> Qp<S, R> {
    /// Handles a request of the peer.
    pub(super) fn requested(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet, payload: &[u8]) {
        if self.state == QpState::Rtr && !std::mem::replace(&mut self.responder.is_established, true) {
            adapter.event(Event::Async(AsyncEventKind::CommEst));
        }
        if self.responder.has_failed || self.responder.replies.len() >= REPLIES_MAX {
            return;
        }
        let (psn, expected) = (packet.psn, self.responder.expected);
        if self.config.transport == QpType::Uc {
            self.unreliable(adapter, packet, payload);
        } else if psn.is_before(expected) {
            self.repeated(adapter, packet);
        } else if psn != expected {
            adapter.event(Event::OutOfSequence(psn));
            if !std::mem::replace(&mut self.responder.has_reported_gap, true) {
                self.reply(expected, Reply::SequenceNak);
            }
        } else {
            self.in_sequence(adapter, packet, payload);
        }
    }

    /// Handles a request of a peer that may not have received the NAK of the failed queue pair: the NAK is repeated.
    pub(super) fn requested_after_failure(&self, adapter: &mut impl Adapter<S, R>, packet: &Packet) {
        if let Some((psn, nak)) = self.responder.last_refusal.filter(|(psn, _)| *psn == packet.psn) {
            let aeth = Aeth { syndrome: Syndrome::Nak(nak), msn: self.responder.msn };
            self.send_empty(adapter, psn, Operation::Acknowledge(aeth));
        }
    }

    fn in_sequence(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet, payload: &[u8]) {
        let part = |segment: Segment, imm_be: Option<u32>| Part {
            psn: packet.psn,
            segment,
            imm_be: imm_be.filter(|_| segment.is_last()),
            solicited: packet.solicited,
            ack_req: packet.ack_req,
            payload,
        };
        let result = match packet.operation {
            Operation::Send(segment, imm_be) => self.handle_send(adapter, part(segment, imm_be)),
            Operation::Write(segment, reth, imm_be) => {
                self.handle_write(adapter, part(segment, imm_be), reth)
            }
            Operation::ReadRequest(reth) => self.handle_read(adapter, packet.psn, reth),
            Operation::AtomicRequest(eth) => self.handle_atomic(adapter, packet.psn, eth),
            // Opcode not supported (IBA 9.7.4.1.4).
            Operation::NotOffered(_) => Err(Failure::of_request(Nak::InvalidRequest)),
            _ => Ok(()),
        };
        if let Err(failure) = result {
            self.refuse(packet.psn, failure);
        }
    }

    /// Handles a request over an unreliable connection, where a missing packet voids its message.
    fn unreliable(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet, payload: &[u8]) {
        let (Operation::Send(segment, _) | Operation::Write(segment, ..)) = packet.operation else { return };
        let expected = self.responder.expected;
        if packet.psn.is_before(expected) {
            return;
        }
        let has_gap = packet.psn != expected;
        self.responder.expect(packet.psn.plus(1));
        if has_gap || segment.is_first() {
            self.drop_incoming();
            self.responder.skips = !segment.is_first();
        }
        if !self.responder.skips {
            self.in_sequence(adapter, packet, payload);
        }
    }

    /// Voids the incomplete unreliable message; the next message uses its receive.
    fn drop_incoming(&mut self) {
        if let Some(Incoming::Send(receive, _)) = self.responder.incoming.take() {
            self.responder.void_receive = Some(receive);
        }
    }

    /// Returns whether a packet may be the next of the incoming message: first packets begin a message, and all but the
    /// last are as long as the MTU (IBA 9.7.4.1.6).
    fn fits_message(&self, part: &Part<'_>) -> bool {
        let (len_bytes, mtu_bytes) = (part.payload.len() as u64, self.mtu_bytes());
        let is_full = len_bytes == mtu_bytes || (part.segment.is_last() && len_bytes < mtu_bytes);
        is_full && part.segment.is_first() == self.responder.incoming.is_none()
    }

    fn next_receive(&mut self, adapter: &mut impl Adapter<S, R>) -> Option<Receive<R>> {
        self.responder.void_receive.take().or_else(|| adapter.take_receive(0))
    }

    fn handle_send(&mut self, adapter: &mut impl Adapter<S, R>, part: Part<'_>) -> Result<(), Failure<R>> {
        if !self.fits_message(&part) {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        let (receive, received_bytes) = match self.responder.incoming.take() {
            Some(Incoming::Send(receive, received_bytes)) => (receive, received_bytes),
            Some(Incoming::Write(..)) => return Err(Failure::of_request(Nak::InvalidRequest)),
            None => match self.next_receive(adapter) {
                Some(receive) => (receive, 0),
                None => return self.handle_missing_receive(part.psn),
            },
        };
        let len_bytes = received_bytes + part.payload.len() as u64;
        if len_bytes > receive.1 {
            return Err(Failure::of_receive(Nak::InvalidRequest, receive, WcStatus::LOC_LEN_ERR));
        }
        if !self.place(adapter, PlacementTarget::Receive(&receive.0, received_bytes), part.payload) {
            return Err(Failure::of_receive(Nak::RemoteOperation, receive, WcStatus::LOC_PROT_ERR));
        }
        let received = if part.segment.is_last() {
            Some((receive, WcOpcode::RECV))
        } else {
            self.responder.incoming = Some(Incoming::Send(receive, len_bytes));
            None
        };
        self.accepted(part, received, len_bytes);
        Ok(())
    }

    fn handle_write(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        part: Part<'_>,
        reth: Option<Reth>,
    ) -> Result<(), Failure<R>> {
        if !self.fits_message(&part) {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        let (target, received_bytes) = match self.responder.incoming.take() {
            Some(Incoming::Write(target, received_bytes)) => (target, received_bytes),
            Some(Incoming::Send(receive, _)) => {
                return Err(Failure::of_receive(Nak::InvalidRequest, receive, WcStatus::WR_FLUSH_ERR));
            }
            None => (reth.ok_or(Failure::of_request(Nak::InvalidRequest))?, 0),
        };
        let len_bytes = received_bytes + part.payload.len() as u64;
        let whole_bytes = u64::from(target.len_bytes);
        let is_too_long = len_bytes > whole_bytes || whole_bytes > self.config.message_bytes_max;
        let ends_early = part.segment.is_last() && len_bytes != whole_bytes;
        if !self.offers(Access::REMOTE_WRITE) || is_too_long || ends_early {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        // Without payload the key is not checked (IBA 9.7.4.1.5).
        if whole_bytes > 0 && !adapter.permits(&target, Access::REMOTE_WRITE) {
            // A refused WRITE with immediate has consumed a receive (IBA 11.6.2: local access error). Of a longer
            // message the first packet is refused, which has no immediate.
            let receive = part.imm_be.and_then(|_| self.next_receive(adapter));
            return Err(match receive {
                Some(receive) => Failure::of_receive(Nak::RemoteAccess, receive, WcStatus::LOC_ACCESS_ERR),
                None => Failure::of_request(Nak::RemoteAccess),
            });
        }
        let mut receive = None;
        if part.imm_be.is_some() {
            receive = self.next_receive(adapter);
            if receive.is_none() {
                if received_bytes > 0 {
                    self.responder.incoming = Some(Incoming::Write(target, received_bytes));
                }
                return self.handle_missing_receive(part.psn);
            }
        }
        if !self.place(adapter, PlacementTarget::Region(target, received_bytes), part.payload) {
            return Err(match receive {
                Some(receive) => Failure::of_receive(Nak::RemoteAccess, receive, WcStatus::LOC_ACCESS_ERR),
                None => Failure::of_request(Nak::RemoteAccess),
            });
        }
        if !part.segment.is_last() {
            self.responder.incoming = Some(Incoming::Write(target, len_bytes));
        }
        let received = receive.map(|receive| (receive, WcOpcode::RECV_RDMA_WITH_IMM));
        self.accepted(part, received, len_bytes);
        Ok(())
    }

    /// Places payload. Returns whether that is permitted.
    fn place(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        to: PlacementTarget<'_, R>,
        payload: &[u8],
    ) -> bool {
        if payload.is_empty() {
            return true;
        }
        let token = self.responder.next_token();
        let accessed = adapter.place(token, to, payload);
        self.record_access(accessed, token)
    }

    /// Records an access that began. Returns whether it is permitted.
    fn record_access(&mut self, accessed: AccessOutcome, token: Token) -> bool {
        if accessed == AccessOutcome::Pending {
            self.responder.pending.push_back(token);
        }
        accessed != AccessOutcome::Denied
    }

    /// Accepts a packet of a SEND or WRITE, which may complete its message.
    fn accepted(&mut self, part: Part<'_>, receive: Option<(Receive<R>, WcOpcode)>, len_bytes: u64) {
        let is_reliable = self.config.transport == QpType::Rc;
        if is_reliable {
            self.responder.expect(part.psn.plus(1));
        }
        if part.segment.is_last() {
            self.responder.count_message();
        }
        let received = receive.map(|((receive, _), opcode)| {
            let mut wc = Wc::ended(0, self.config.qpn, opcode, WcStatus::SUCCESS);
            wc.byte_len = len_bytes as u32;
            wc.src_qp = self.settings.dest_qpn;
            if let Some(imm_be) = part.imm_be {
                wc.imm_data_be = imm_be;
                wc.wc_flags = WcFlags::WITH_IMM;
            }
            Received { receive, wc, is_solicited: part.solicited }
        });
        let is_acknowledged = is_reliable && part.ack_req;
        if is_acknowledged || received.is_some() {
            self.reply(part.psn, Reply::Done { is_acknowledged, received });
        }
    }

    fn handle_missing_receive(&mut self, psn: Psn) -> Result<(), Failure<R>> {
        if self.config.transport == QpType::Rc {
            // The packets sent after it will be retransmitted with it.
            self.responder.has_reported_gap = true;
            self.reply(psn, Reply::RnrNak);
        } else {
            self.responder.skips = true;
        }
        Ok(())
    }

    fn handle_read(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        psn: Psn,
        target: Reth,
    ) -> Result<(), Failure<R>> {
        let is_offered = self.offers(Access::REMOTE_READ) && !self.is_full_of_reads();
        let is_too_long = u64::from(target.len_bytes) > self.config.message_bytes_max;
        if self.responder.incoming.is_some() || !is_offered || is_too_long {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        if !self.prepare_read(adapter, &target) {
            return Err(Failure::of_request(Nak::RemoteAccess));
        }
        let packets = self.response_packets(&target);
        self.responder.expect(psn.plus(packets));
        self.responder.count_message();
        self.record_executed(Executed::Read { first: psn, packets });
        self.reply(psn, Reply::Read { target, sent: 0, packets, is_repeated: false });
        Ok(())
    }

    fn response_packets(&self, target: &Reth) -> u32 {
        u64::from(target.len_bytes).div_ceil(self.mtu_bytes()).max(1) as u32
    }

    /// Returns whether a region may be read. Without bytes the key is not checked.
    fn prepare_read(&mut self, adapter: &mut impl Adapter<S, R>, target: &Reth) -> bool {
        if target.len_bytes == 0 {
            return true;
        }
        let token = self.responder.next_token();
        let accessed = adapter.prepare_read(token, target);
        self.record_access(accessed, token)
    }

    fn handle_atomic(
        &mut self,
        adapter: &mut impl Adapter<S, R>,
        psn: Psn,
        target: AtomicEth,
    ) -> Result<(), Failure<R>> {
        let is_offered = self.offers(Access::REMOTE_ATOMIC) && !self.is_full_of_reads();
        if self.responder.incoming.is_some() || !is_offered || !target.addr.is_multiple_of(8) {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        let word = Reth { addr: target.addr, rkey: target.rkey, len_bytes: 8 };
        if !adapter.permits(&word, Access::REMOTE_ATOMIC) {
            return Err(Failure::of_request(Nak::RemoteAccess));
        }
        self.responder.expect(psn.plus(1));
        self.responder.count_message();
        let token = self.responder.next_token();
        self.record_executed(Executed::Atomic { psn, token, old: None });
        self.reply(psn, Reply::Atomic(target));
        Ok(())
    }

    /// Returns whether the queue pair permits such requests. Otherwise the request is invalid, whatever memory it
    /// addresses.
    fn offers(&self, access: Access) -> bool {
        self.settings.access.contains(access)
    }

    /// Returns whether the READs and atomics in progress occupy all responder resources.
    fn is_full_of_reads(&self) -> bool {
        let waiting = self.responder.replies.iter().filter(|waiting| waiting.takes_resource()).count();
        waiting >= usize::from(self.settings.max_dest_rd_atomic)
    }

    fn record_executed(&mut self, request: Executed) {
        let resources = usize::from(self.settings.max_dest_rd_atomic).max(1);
        if self.responder.executed.len() >= resources {
            self.responder.executed.pop_front();
        }
        self.responder.executed.push_back(request);
    }

    /// Handles a repeated request, which was accepted before: nothing is executed twice.
    fn repeated(&mut self, adapter: &mut impl Adapter<S, R>, packet: &Packet) {
        let psn = packet.psn;
        // The peer has not sent it, or not recently.
        if !self.responder.repeats.is_possible(self.responder.expected.distance_from(psn)) {
            return;
        }
        match packet.operation {
            Operation::Send(..) | Operation::Write(..) => {
                if !self.responder.repeats.take(adapter.now_ns()) {
                    return;
                }
                let newest = self.responder.expected.previous();
                self.reply(newest, Reply::Done { is_acknowledged: true, received: None });
            }
            Operation::ReadRequest(target) => {
                let packets = self.response_packets(&target);
                let is_known = self.responder.executed.iter().any(|known| match known {
                    Executed::Read { first, packets: of } => psn.distance_from(*first) + packets <= *of,
                    Executed::Atomic { .. } => false,
                });
                if !is_known {
                    return;
                }
                let may_read = self.prepare_read(adapter, &target);
                let read = Reply::Read { target, sent: 0, packets, is_repeated: true };
                self.reply(psn, if may_read { read } else { Reply::RepeatedReadRefused });
            }
            Operation::AtomicRequest(_) => self.reply(psn, Reply::AtomicAnswer { is_repeated: true }),
            _ => {}
        }
    }

    /// Refuses a request. An unreliable one is dropped silently.
    fn refuse(&mut self, psn: Psn, failure: Failure<R>) {
        if self.config.transport == QpType::Rc {
            self.responder.has_failed = true;
            self.reply(psn, Reply::Fail(failure));
            return;
        }
        self.responder.skips = true;
        if let Some((receive, _)) = failure.receive {
            self.responder.void_receive = Some(receive);
        }
    }
}
