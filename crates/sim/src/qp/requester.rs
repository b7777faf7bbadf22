//! The requester: send requests in their order, cut into packets.

use std::collections::VecDeque;

use farcall_verbs::{Access, QpState, QpType, Sge, WcOpcode, WcStatus};

use super::Qp;
use crate::packet::{AtomicOp, Body, Node, Part, Psn, Target};
use crate::state::State;

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Send,
    Write(Target),
    Read(Target),
    Atomic { addr: u64, rkey: u32, op: AtomicOp },
    Datagram { peer: Option<Node>, qpn: u32, qkey: u32 },
}

/// What was posted.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) work: Work,
    pub(super) imm_be: Option<u32>,
    pub(super) is_signalled: bool,
    pub(super) is_solicited: bool,
    pub(super) is_fenced: bool,
    pub(super) len: u64,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Option<Vec<u8>>,
}

impl Request {
    pub(super) const fn returns_data(&self) -> bool {
        matches!(self.work, Work::Read(_) | Work::Atomic { .. })
    }

    pub(super) const fn opcode(&self) -> WcOpcode {
        match self.work {
            Work::Send | Work::Datagram { .. } => WcOpcode::SEND,
            Work::Write(_) => WcOpcode::RDMA_WRITE,
            Work::Read(_) => WcOpcode::RDMA_READ,
            Work::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::COMP_SWAP,
            Work::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FETCH_ADD,
        }
    }

    fn packets(&self, mtu_bytes: u64) -> u32 {
        match self.work {
            Work::Atomic { .. } | Work::Datagram { .. } => 1,
            Work::Send | Work::Write(_) | Work::Read(_) => self.len.div_ceil(mtu_bytes).max(1) as u32,
        }
    }
}

/// A request that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Its first packet.
    pub(super) psn: Psn,
    /// How many there are; of a READ, how many answer it.
    pub(super) packets: u32,
    /// Answers that came, in order.
    pub(super) answers: u32,
}

impl Begun {
    pub(super) fn last(&self) -> Psn {
        self.psn.plus(self.packets - 1)
    }

    /// The answer that must come next.
    pub(super) fn next_answer(&self) -> Psn {
        self.psn.plus(self.answers)
    }
}

/// A request in its queue.
pub(super) struct Queued {
    pub(super) request: Request,
    pub(super) begun: Option<Begun>,
    /// It failed at this side; its turn to say so comes when those before it are over.
    failed: Option<WcStatus>,
}

/// The send queue and where its sender stands.
#[derive(Default)]
pub(super) struct Requester {
    pub(super) queue: VecDeque<Queued>,
    /// The ordinal of the first request in the queue.
    pub(super) first: u64,
    /// Requests known to be over by a completion that was polled.
    reaped: u64,
    /// The next packet: of which request in the queue, and which packet of it.
    at: usize,
    packet: u32,
    next_psn: u32,
    /// Everything before it is acknowledged.
    pub(super) acknowledged: u32,
    is_pumping: bool,
    pub(super) timers: super::timers::Timers,
    /// What is missing was asked for again since anything came.
    pub(super) asked_again: bool,
}

impl Requester {
    pub(super) fn push(&mut self, request: Request) {
        self.queue.push_back(Queued { request, begun: None, failed: None });
    }

    /// Forgets everything but the lives of its timers: events of the old ones may be on their way.
    pub(super) fn reset(&mut self) {
        let timers = std::mem::take(&mut self.timers);
        *self = Self { timers, ..Self::default() };
    }

    /// Requests that take a place in the queue.
    pub(super) fn outstanding(&self) -> u64 {
        self.first + self.queue.len() as u64 - self.reaped
    }

    pub(super) fn reap(&mut self, ordinal: u64) {
        self.reaped = self.reaped.max(ordinal + 1);
    }

    pub(super) fn set_pumping(&mut self) -> bool {
        !std::mem::replace(&mut self.is_pumping, true)
    }

    pub(super) fn start(&mut self, psn: Psn) {
        self.next_psn = psn.number() as u32;
        self.acknowledged = self.next_psn;
    }

    pub(super) fn unacknowledged(&self) -> Psn {
        Psn::new(self.acknowledged)
    }

    pub(super) fn next_psn(&self) -> Psn {
        Psn::new(self.next_psn)
    }

    pub(super) fn set_acknowledged(&mut self, next: Psn) {
        self.acknowledged = next.number() as u32;
    }

    /// Whether a packet with this number was sent and is not acknowledged.
    pub(super) fn is_in_flight(&self, psn: Psn) -> bool {
        psn.after(self.unacknowledged()) < self.next_psn().after(self.unacknowledged())
    }

    /// Whether anything was begun that is not over.
    pub(super) fn waits(&self) -> bool {
        self.queue.front().is_some_and(|queued| queued.begun.is_some())
    }

    /// The first request is over.
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.first += 1;
        if self.at == 0 {
            self.packet = 0;
        }
        self.at = self.at.saturating_sub(1);
        Some(queued)
    }

    /// The next packet to be sent is the one with this number.
    pub(super) fn go_back_to(&mut self, psn: Psn) {
        for (at, queued) in self.queue.iter().enumerate() {
            let Some(begun) = queued.begun else { break };
            if psn.after(begun.psn) < begun.packets {
                (self.at, self.packet) = (at, psn.after(begun.psn));
                return;
            }
        }
    }

    /// What was acknowledged is not sent again, even if that had begun.
    pub(super) fn skip_acknowledged(&mut self) {
        let next = self.unacknowledged();
        if let (0, Some(begun)) = (self.at, self.queue.front().and_then(|queued| queued.begun)) {
            let behind = next.after(begun.psn);
            if behind < begun.packets && self.packet < behind {
                self.packet = behind;
            }
        }
    }

    fn reads_in_flight(&self) -> usize {
        self.queue.iter().take(self.at).filter(|queued| queued.request.returns_data()).count()
    }
}

/// How the next packet stands.
enum Turn {
    /// Nothing can be sent.
    Wait,
    /// The next request cannot be executed here.
    Fail(WcStatus),
    /// A packet, and whether it was the request's last.
    Packet(Psn, Body, bool),
}

impl Qp {
    /// Whether requests are executed rather than flushed.
    pub(super) fn runs(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Sends the next packet, if there is one and it may go.
    pub(crate) fn pump(&mut self, state: &mut State) {
        self.requester.is_pumping = false;
        if !self.runs() || self.requester.timers.is_rnr_waiting() {
            return;
        }
        match self.turn(state) {
            Turn::Wait => {}
            Turn::Fail(status) => {
                self.requester.queue[self.requester.at].failed = Some(status);
                self.fail_if_first(state);
            }
            Turn::Packet(psn, body, is_last) => {
                self.transmit(state, psn, body);
                if is_last {
                    self.requester.at += 1;
                    self.requester.packet = 0;
                } else {
                    self.requester.packet += 1;
                }
                if self.kind == QpType::Rc {
                    self.start_ack_timer(state);
                } else if is_last {
                    // Nothing answers: what is sent is over.
                    self.end_first(state, WcStatus::SUCCESS);
                }
                let at_ns = state.now_ns + state.params.packet_gap_ns;
                self.pump_at(state, at_ns);
            }
        }
    }

    fn transmit(&self, state: &mut State, psn: Psn, body: Body) {
        let request = &self.requester.queue[self.requester.at].request;
        match request.work {
            Work::Datagram { peer, qpn, .. } => self.send_datagram(state, peer, qpn, psn, body),
            _ => self.send_to_peer(state, psn, body),
        }
    }

    fn turn(&mut self, state: &mut State) -> Turn {
        let at = self.requester.at;
        let Some(queued) = self.requester.queue.get(at) else { return Turn::Wait };
        if queued.failed.is_some() {
            return Turn::Wait;
        }
        let begun = match queued.begun {
            Some(begun) => begun,
            None => {
                if !self.may_begin(state, at) {
                    return Turn::Wait;
                }
                if let Some(status) = self.local_failure(state, at) {
                    return Turn::Fail(status);
                }
                self.begin(at)
            }
        };
        let psn = begun.psn.plus(self.requester.packet);
        if self.is_window_full(state, psn) {
            return Turn::Wait;
        }
        self.packet(state, at, begun)
    }

    fn may_begin(&self, state: &State, at: usize) -> bool {
        let request = &self.requester.queue[at].request;
        let reads = self.requester.reads_in_flight();
        let may_read = reads < usize::from(self.settings.max_rd_atomic);
        self.state == QpState::Rts
            && !(request.is_fenced && reads > 0)
            && (!request.returns_data() || may_read || self.settings.max_rd_atomic == 0)
            && !self.is_window_full(state, self.requester.next_psn())
    }

    /// Whether too much is unacknowledged for this packet to be sent. What nobody acknowledges is not waited for.
    fn is_window_full(&self, state: &State, psn: Psn) -> bool {
        let ahead = psn.after(self.requester.unacknowledged());
        self.kind == QpType::Rc && ahead >= state.params.unacknowledged_max
    }

    /// What makes a request fail before its first packet.
    fn local_failure(&self, state: &State, at: usize) -> Option<WcStatus> {
        let request = &self.requester.queue[at].request;
        let len_max = match (self.kind, request.work) {
            (QpType::Ud, _) => u64::from(state.params.mtu.bytes()),
            _ => state.params.limits.message_bytes,
        };
        if request.len > len_max || (matches!(request.work, Work::Atomic { .. }) && request.len != 8) {
            return Some(WcStatus::LOC_LEN_ERR);
        }
        if request.returns_data() && self.settings.max_rd_atomic == 0 {
            return Some(WcStatus::LOC_QP_OP_ERR);
        }
        let need = if request.returns_data() { Access::LOCAL_WRITE } else { Access::empty() };
        let is_open = request.inline.is_some()
            || state.admit_list(self.domain(), &request.sges, (0, request.len), need).is_some();
        (!is_open).then_some(WcStatus::LOC_PROT_ERR)
    }

    fn begin(&mut self, at: usize) -> Begun {
        let mtu_bytes = self.mtu_bytes();
        let requester = &mut self.requester;
        let packets = requester.queue[at].request.packets(mtu_bytes);
        let begun = Begun { psn: requester.next_psn(), packets, answers: 0 };
        requester.next_psn = begun.psn.plus(packets).number() as u32;
        requester.queue[at].begun = Some(begun);
        requester.packet = 0;
        begun
    }

    /// The packet whose turn it is. Payload is read now: this is its time of DMA.
    fn packet(&self, state: &mut State, at: usize, begun: Begun) -> Turn {
        let request = &self.requester.queue[at].request;
        let psn = begun.psn.plus(self.requester.packet);
        match request.work {
            Work::Read(target) => {
                // What has come is not asked for again.
                let done = u64::from(begun.answers) * self.mtu_bytes();
                let rest = Target { addr: target.addr.wrapping_add(done), len: target.len - done, ..target };
                Turn::Packet(begun.next_answer(), Body::ReadRequest(rest), true)
            }
            Work::Atomic { addr, rkey, op } => {
                Turn::Packet(psn, Body::AtomicRequest { addr, rkey, op }, true)
            }
            Work::Datagram { qkey, .. } => match self.payload(state, request, (0, request.len)) {
                Some(payload) => {
                    let (imm_be, solicited) = (request.imm_be, request.is_solicited);
                    Turn::Packet(psn, Body::Datagram { qkey, imm_be, solicited, payload }, true)
                }
                None => Turn::Fail(WcStatus::LOC_PROT_ERR),
            },
            Work::Send | Work::Write(_) => self.part(state, request, begun),
        }
    }

    fn part(&self, state: &mut State, request: &Request, begun: Begun) -> Turn {
        let index = self.requester.packet;
        let offset = u64::from(index) * self.mtu_bytes();
        let len = (request.len - offset).min(self.mtu_bytes());
        let Some(payload) = self.payload(state, request, (offset, len)) else {
            return Turn::Fail(WcStatus::LOC_PROT_ERR);
        };
        let (is_first, is_last) = (index == 0, index + 1 == begun.packets);
        let target = match request.work {
            Work::Write(target) => Some(target),
            _ => None,
        };
        let part = Part {
            is_first,
            is_last,
            target: target.filter(|_| is_first),
            is_write: target.is_some(),
            imm_be: request.imm_be.filter(|_| is_last),
            solicited: is_last && request.is_solicited,
            ack_requested: is_last || index % 16 == 15,
        };
        Turn::Packet(begun.psn.plus(index), Body::Part(part, payload), is_last)
    }

    fn payload(&self, state: &mut State, request: &Request, (offset, len): (u64, u64)) -> Option<Vec<u8>> {
        if let Some(inline) = &request.inline {
            return Some(inline[offset as usize..(offset + len) as usize].to_vec());
        }
        let pieces = state.admit_list(self.domain(), &request.sges, (offset, len), Access::empty())?;
        Some(state.fetch_list(&pieces))
    }

    /// A request that failed here fails when it is the first.
    pub(super) fn fail_if_first(&mut self, state: &mut State) {
        if let Some(status) = self.requester.queue.front().and_then(|queued| queued.failed) {
            self.fail_first(state, status);
        }
    }
}
