//! The responder: requests in the order of their packet numbers, each checked before anything changes.

use std::collections::VecDeque;

use farcall_verbs::{Access, AsyncEventKind, QpState, QpType, Wc, WcFlags, WcOpcode, WcStatus};

use super::Qp;
use super::jobs::{Failure, Job, Step};
use crate::packet::{AtomicOp, Body, Nak, Part, Psn, Target};
use crate::receive::Receive;
use crate::state::State;
use crate::trace::What;

/// A message of which more is to come.
enum Incoming {
    Send { receive: Receive, got: u64 },
    Write { target: Target, got: u64 },
}

/// A request that changed or returned something, kept to be answered again (IBA 9.7.5.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) enum Remembered {
    Read { first: Psn, packets: u32 },
    Atomic { psn: Psn, old: Option<u64> },
}

/// Where the responder stands.
#[derive(Default)]
pub(super) struct Responder {
    expected: u32,
    /// The gap before the next packet was told; until it closes, nothing more is said about it.
    has_told_gap: bool,
    incoming: Option<Incoming>,
    /// A receive that was begun for a message that came to nothing; the pair's next message takes it. It does not go back to
    /// a shared queue: payload of the void message may still be landing in it, behind which only this pair waits.
    kept: Option<Receive>,
    /// An unreliable message that lost a packet: the rest of it means nothing.
    skips: bool,
    pub(super) jobs: VecDeque<Job>,
    pub(super) is_scheduled: bool,
    pub(super) remembered: VecDeque<Remembered>,
    /// When everything accepted so far has landed.
    landed_ns: u64,
    /// When payload of the message that comes in may begin to land.
    from_ns: u64,
    is_established: bool,
    /// A request was refused: the pair is about to fail, and nothing that comes after is looked at.
    has_failed: bool,
}

impl Responder {
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = psn.number() as u32;
    }

    fn expected(&self) -> Psn {
        Psn::new(self.expected)
    }

    fn expect(&mut self, psn: Psn) {
        self.expected = psn.number() as u32;
        self.has_told_gap = false;
    }

    /// Gives up everything that is not over. Returns the receives that were taken for it, oldest first.
    pub(super) fn abandon(&mut self) -> Vec<Receive> {
        let jobs = self.jobs.drain(..).filter_map(Job::into_receive);
        let mut receives: Vec<Receive> = jobs.collect();
        receives.extend(self.kept.take());
        if let Some(Incoming::Send { receive, .. }) = self.incoming.take() {
            receives.push(receive);
        }
        self.is_scheduled = false;
        receives
    }
}

impl Qp {
    /// A request of the peer.
    pub(super) fn requested(&mut self, state: &mut State, psn: Psn, body: Body) {
        if self.state == QpState::Rtr && !std::mem::replace(&mut self.responder.is_established, true) {
            state.async_event(self.context, AsyncEventKind::CommEst, self.num);
        }
        if self.kind == QpType::Uc {
            self.unreliable(state, psn, body);
            return;
        }
        if self.responder.has_failed {
            return;
        }
        let expected = self.responder.expected();
        if psn.is_before(expected) {
            self.repeated(state, psn, &body);
        } else if psn != expected {
            state.note(What::Ignore, [u64::from(self.node), u64::from(self.num), psn.number(), 1]);
            if !std::mem::replace(&mut self.responder.has_told_gap, true) {
                self.later(state, Step::Refuse { psn: expected, nak: Nak::Sequence });
            }
        } else {
            match body {
                Body::Part(part, payload) => self.part_came(state, psn, part, &payload),
                Body::ReadRequest(target) => self.read_came(state, psn, target),
                Body::AtomicRequest { addr, rkey, op } => self.atomic_came(state, psn, (addr, rkey), op),
                _ => {}
            }
        }
    }

    /// Over an unreliable connection a gap ends the message that it is in.
    fn unreliable(&mut self, state: &mut State, psn: Psn, body: Body) {
        let Body::Part(part, payload) = body else { return };
        if psn.is_before(self.responder.expected()) {
            return;
        }
        let has_gap = psn != self.responder.expected();
        self.responder.expect(psn.plus(1));
        if has_gap || part.is_first {
            self.drop_incoming();
            self.responder.skips = !part.is_first;
        }
        if !self.responder.skips {
            self.part_came(state, psn, part, &payload);
        }
    }

    /// What came of an unreliable message so far is void; its receive is the next one again.
    fn drop_incoming(&mut self) {
        if let Some(Incoming::Send { receive, .. }) = self.responder.incoming.take() {
            self.responder.kept = Some(receive);
        }
    }

    fn part_came(&mut self, state: &mut State, psn: Psn, part: Part, payload: &[u8]) {
        if part.is_first != self.responder.incoming.is_none() {
            self.refuse(state, psn, Failure::of_request(Nak::InvalidRequest));
            return;
        }
        if part.is_first {
            self.responder.from_ns = self.responder.landed_ns.max(state.now_ns + state.params.placement_ns);
        }
        let result = if part.is_write {
            self.write_came(state, psn, part, payload)
        } else {
            self.send_came(state, psn, part, payload)
        };
        if let Err(failure) = result {
            self.refuse(state, psn, failure);
        }
    }

    fn next_receive(&mut self, state: &mut State) -> Option<Receive> {
        if self.responder.kept.is_some() {
            return self.responder.kept.take();
        }
        match self.srq {
            Some(srq) => state.take_shared(srq),
            None => self.receives.pop(),
        }
    }

    fn send_came(&mut self, state: &mut State, psn: Psn, part: Part, payload: &[u8]) -> Result<(), Failure> {
        let (receive, got) = match self.responder.incoming.take() {
            Some(Incoming::Send { receive, got }) => (receive, got),
            Some(Incoming::Write { .. }) => return Err(Failure::of_request(Nak::InvalidRequest)),
            None => match self.next_receive(state) {
                Some(receive) => (receive, 0),
                None => return self.nothing_posted(state, psn),
            },
        };
        let len = payload.len() as u64;
        if got + len > receive.room() {
            return Err(Failure::of_receive(Nak::InvalidRequest, receive, WcStatus::LOC_LEN_ERR));
        }
        let pieces = state.admit_list(self.domain(), &receive.sges, (got, len), Access::LOCAL_WRITE);
        let Some(pieces) = pieces else {
            return Err(Failure::of_receive(Nak::RemoteOperation, receive, WcStatus::LOC_PROT_ERR));
        };
        self.place(state, &pieces, payload);
        let receive = if part.is_last {
            Some((receive, WcOpcode::RECV))
        } else {
            self.responder.incoming = Some(Incoming::Send { receive, got: got + len });
            None
        };
        self.accepted(state, psn, part, receive, got + len);
        Ok(())
    }

    fn write_came(&mut self, state: &mut State, psn: Psn, part: Part, payload: &[u8]) -> Result<(), Failure> {
        let (target, got) = match self.responder.incoming.take() {
            Some(Incoming::Write { target, got }) => (target, got),
            Some(Incoming::Send { .. }) => return Err(Failure::of_request(Nak::InvalidRequest)),
            None => (part.target.ok_or(Failure::of_request(Nak::InvalidRequest))?, 0),
        };
        let len = payload.len() as u64;
        let denied = || Failure::of_request(Nak::RemoteAccess);
        if !self.offers(Access::REMOTE_WRITE) {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        if got + len > target.len || (part.is_last && got + len != target.len) {
            return Err(Failure::of_request(Nak::InvalidRequest));
        }
        // Without payload the key is not looked at (IBA 9.7.4.1.5).
        let mut pieces = Vec::new();
        if target.len > 0 {
            let whole = (target.addr, target.len);
            state.admit(self.domain(), target.rkey, whole, Access::REMOTE_WRITE).ok_or_else(denied)?;
            let here = (target.addr.wrapping_add(got), len);
            pieces.push(
                state.admit(self.domain(), target.rkey, here, Access::REMOTE_WRITE).ok_or_else(denied)?,
            );
        }
        let mut receive = None;
        if part.imm_be.is_some() {
            match self.next_receive(state) {
                Some(next) => receive = Some((next, WcOpcode::RECV_RDMA_WITH_IMM)),
                None => {
                    if got > 0 {
                        self.responder.incoming = Some(Incoming::Write { target, got });
                    }
                    return self.nothing_posted(state, psn);
                }
            }
        }
        self.place(state, &pieces, payload);
        if !part.is_last {
            self.responder.incoming = Some(Incoming::Write { target, got: got + len });
        }
        self.accepted(state, psn, part, receive, got + len);
        Ok(())
    }

    /// Payload of the message that comes in lands.
    fn place(&mut self, state: &mut State, pieces: &[crate::memory::Admitted], payload: &[u8]) {
        let responder = &mut self.responder;
        let from_ns = responder.from_ns.max(state.now_ns + state.params.placement_ns);
        let landed_ns = state.place(pieces, payload, (self.id, self.life), from_ns);
        responder.landed_ns = responder.landed_ns.max(landed_ns);
        if state.params.placement_in_order {
            responder.from_ns = landed_ns;
        }
    }

    /// A packet of a SEND or WRITE was accepted; its message may be whole.
    fn accepted(
        &mut self,
        state: &mut State,
        psn: Psn,
        part: Part,
        receive: Option<(Receive, WcOpcode)>,
        len: u64,
    ) {
        if self.kind == QpType::Rc {
            self.responder.expect(psn.plus(1));
        }
        let ack = (self.kind == QpType::Rc && part.ack_requested).then_some(psn);
        let received = receive.map(|(receive, opcode)| {
            let mut wc = Wc::ended(receive.wr_id, self.num, opcode, WcStatus::SUCCESS);
            wc.byte_len = len as u32;
            wc.src_qp = self.settings.dest_qpn;
            if let Some(imm_be) = part.imm_be {
                wc.imm_data_be = imm_be;
                wc.wc_flags = WcFlags::WITH_IMM;
            }
            (receive, wc, part.solicited)
        });
        if ack.is_some() || received.is_some() {
            self.later(state, Step::Finish { ack, received: received.map(Box::new) });
        }
    }

    fn nothing_posted(&mut self, state: &mut State, psn: Psn) -> Result<(), Failure> {
        if self.kind == QpType::Rc {
            // What was sent behind it comes again with it.
            self.responder.has_told_gap = true;
            self.later(state, Step::NotReady { psn });
        } else {
            self.responder.skips = true;
        }
        Ok(())
    }

    fn read_came(&mut self, state: &mut State, psn: Psn, target: Target) {
        let is_allowed = target.len == 0
            || state
                .admit(self.domain(), target.rkey, (target.addr, target.len), Access::REMOTE_READ)
                .is_some();
        let is_offered = self.offers(Access::REMOTE_READ) && !self.is_full_of_reads();
        if self.responder.incoming.is_some() || !is_offered {
            self.refuse(state, psn, Failure::of_request(Nak::InvalidRequest));
        } else if !is_allowed {
            self.refuse(state, psn, Failure::of_request(Nak::RemoteAccess));
        } else {
            let packets = target.len.div_ceil(self.mtu_bytes()).max(1) as u32;
            self.responder.expect(psn.plus(packets));
            self.remember(Remembered::Read { first: psn, packets });
            let pause_ns = state.placement_rng.between(0, state.params.read_max_ns);
            self.after(state, pause_ns, Step::Read { psn, target, sent: 0, packets, is_repeated: false });
        }
    }

    fn atomic_came(&mut self, state: &mut State, psn: Psn, (addr, rkey): (u64, u32), op: AtomicOp) {
        let is_allowed = state.admit(self.domain(), rkey, (addr, 8), Access::REMOTE_ATOMIC).is_some();
        let is_offered = self.offers(Access::REMOTE_ATOMIC) && !self.is_full_of_reads();
        if self.responder.incoming.is_some() || !is_offered || !addr.is_multiple_of(8) {
            self.refuse(state, psn, Failure::of_request(Nak::InvalidRequest));
        } else if !is_allowed {
            self.refuse(state, psn, Failure::of_request(Nak::RemoteAccess));
        } else {
            self.responder.expect(psn.plus(1));
            self.remember(Remembered::Atomic { psn, old: None });
            self.later(state, Step::Atomic { psn, addr, rkey, op });
        }
    }

    /// Whether the pair executes such requests at all. One that it does not is invalid, whatever memory it names.
    fn offers(&self, access: Access) -> bool {
        self.settings.access.contains(access)
    }

    /// Whether as many READs and atomics are under way as the pair has resources for.
    fn is_full_of_reads(&self) -> bool {
        let waiting = self.responder.jobs.iter().filter(|job| job.takes_resource()).count();
        waiting >= usize::from(self.settings.max_dest_rd_atomic)
    }

    fn remember(&mut self, what: Remembered) {
        let resources = usize::from(self.settings.max_dest_rd_atomic).max(1);
        if self.responder.remembered.len() >= resources {
            self.responder.remembered.pop_front();
        }
        self.responder.remembered.push_back(what);
    }

    /// A request that was accepted before: nothing is executed twice.
    fn repeated(&mut self, state: &mut State, psn: Psn, body: &Body) {
        match body {
            Body::Part(..) => {
                let ack = Some(self.responder.expected().before());
                self.later(state, Step::Finish { ack, received: None });
            }
            Body::ReadRequest(target) => {
                let packets = target.len.div_ceil(self.mtu_bytes()).max(1) as u32;
                let is_known = self.responder.remembered.iter().any(|known| match known {
                    Remembered::Read { first, packets: of } => psn.after(*first) + packets <= *of,
                    Remembered::Atomic { .. } => false,
                });
                let is_allowed = target.len == 0
                    || state
                        .admit(self.domain(), target.rkey, (target.addr, target.len), Access::REMOTE_READ)
                        .is_some();
                if is_known && is_allowed {
                    let target = *target;
                    self.later(state, Step::Read { psn, target, sent: 0, packets, is_repeated: true });
                }
            }
            Body::AtomicRequest { .. } => self.later(state, Step::AtomicAgain { psn }),
            _ => {}
        }
    }

    /// Refuses a request; unreliable ones are dropped silently.
    fn refuse(&mut self, state: &mut State, psn: Psn, failure: Failure) {
        if self.kind == QpType::Rc {
            self.responder.has_failed = true;
            self.later(state, Step::Fail { psn, failure: Box::new(failure) });
            return;
        }
        self.responder.skips = true;
        if let Some((receive, _)) = failure.receive {
            self.responder.kept = Some(receive);
        }
    }

    /// Does something after everything accepted so far has landed and was answered.
    fn later(&mut self, state: &mut State, step: Step) {
        self.after(state, 0, step);
    }

    fn after(&mut self, state: &mut State, pause_ns: u64, step: Step) {
        let ready_ns = self.responder.landed_ns.max(state.now_ns) + pause_ns;
        self.responder.jobs.push_back(Job { ready_ns, step });
        self.schedule(state, ready_ns);
    }
}
