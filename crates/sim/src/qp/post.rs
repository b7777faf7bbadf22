//! Posting: what is refused at once, and what is queued.

use farcall_verbs::{Error, OpCaps, PostError, QpType, RecvWr, Result, SendFlags, SendWr, WrOpcode};
use std::ptr;

use super::Qp;
use super::requester::{Request, Work};
use crate::packet::{AtomicOp, Target};
use crate::queue::Event;
use crate::state::State;
use crate::trace::What;

/// What a transport can do (IBA table 38).
pub(crate) fn operations(kind: QpType) -> OpCaps {
    let sends = OpCaps::SEND | OpCaps::SEND_IMM | OpCaps::SRQ;
    match kind {
        QpType::Rc => OpCaps::all(),
        QpType::Uc => sends | OpCaps::WRITE | OpCaps::WRITE_IMM,
        QpType::Ud => sends,
        _ => OpCaps::empty(),
    }
}

fn operation(opcode: WrOpcode) -> Option<OpCaps> {
    Some(match opcode {
        WrOpcode::SEND => OpCaps::SEND,
        WrOpcode::SEND_WITH_IMM => OpCaps::SEND_IMM,
        WrOpcode::WRITE => OpCaps::WRITE,
        WrOpcode::WRITE_WITH_IMM => OpCaps::WRITE_IMM,
        WrOpcode::READ => OpCaps::READ,
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => OpCaps::ATOMIC,
        _ => return None,
    })
}

const OP: &str = "post_send";

impl Qp {
    /// Queues send requests, as one doorbell.
    ///
    /// # Safety
    /// Inline elements must be readable.
    pub(super) unsafe fn post_send(
        &mut self,
        state: &mut State,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            // SAFETY: passed on.
            if let Err(source) = unsafe { self.post_one(state, wr) } {
                result = Err(PostError { posted, source });
                break;
            }
        }
        if self.state.accepts_sends() && !self.runs() {
            self.flush_sends(state);
        } else {
            let at_ns = state.effect_ns() + state.params.doorbell_ns;
            self.pump_at(state, at_ns);
        }
        result
    }

    unsafe fn post_one(&mut self, state: &mut State, wr: &SendWr<'_>) -> Result<()> {
        if !self.state.accepts_sends() {
            return Err(Error::InvalidState {
                operation: OP,
                object: format!("queue pair {:#x}", self.num),
                state: self.state.to_string(),
                remedy: "sends are accepted from RTS on",
            });
        }
        if self.requester.outstanding() >= u64::from(self.cap.max_send_wr) {
            return Err(Error::Exhausted {
                operation: OP,
                what: "send queue",
                limit: self.cap.max_send_wr.into(),
                remedy: "poll completions first: a place is free when its completion, or a later one, was polled",
            });
        }
        self.check_shape(wr)?;
        let work = self.work_of(state, wr)?;
        // SAFETY: passed on.
        let inline = wr.send_flags.contains(SendFlags::INLINE).then(|| unsafe { gather_inline(wr) });
        state.note(What::Post, [u64::from(self.num), wr.wr_id, u64::from(wr.opcode.0), wr.len_bytes()]);
        self.requester.push(Request {
            wr_id: wr.wr_id,
            work,
            imm_be: matches!(wr.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM)
                .then_some(wr.imm_data_be),
            is_signalled: self.signal_all || wr.send_flags.contains(SendFlags::SIGNALED),
            is_solicited: wr.send_flags.contains(SendFlags::SOLICITED),
            is_fenced: wr.send_flags.contains(SendFlags::FENCE),
            len: wr.len_bytes(),
            sges: wr.sges().to_vec(),
            inline,
        });
        Ok(())
    }

    fn check_shape(&self, wr: &SendWr<'_>) -> Result<()> {
        let is_offered = operation(wr.opcode).is_some_and(|op| operations(self.kind).contains(op));
        if !is_offered {
            return Err(Error::invalid(OP, format!("opcode {} over {:?}", wr.opcode.0, self.kind)));
        }
        if wr.sges().len() > self.cap.max_send_sge as usize {
            let what = format!("{} elements; the queue takes {}", wr.sges().len(), self.cap.max_send_sge);
            return Err(Error::invalid(OP, what));
        }
        if wr.send_flags.contains(SendFlags::INLINE) {
            if wr.opcode.returns_data() {
                return Err(Error::invalid(OP, "READs and atomics cannot be inline"));
            }
            if wr.len_bytes() > u64::from(self.cap.max_inline_data) {
                let what =
                    format!("{} bytes inline; the queue takes {}", wr.len_bytes(), self.cap.max_inline_data);
                return Err(Error::invalid(OP, what));
            }
        }
        Ok(())
    }

    fn work_of(&self, state: &State, wr: &SendWr<'_>) -> Result<Work> {
        let rdma = wr.rdma();
        let target = Target { addr: rdma.remote_addr, rkey: rdma.rkey, len: wr.len_bytes() };
        let atomic = |op| {
            let to = wr.atomic_target();
            Work::Atomic { addr: to.remote_addr, rkey: to.rkey, op }
        };
        Ok(match wr.opcode {
            WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM => Work::Write(target),
            WrOpcode::READ => Work::Read(target),
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                let to = wr.atomic_target();
                atomic(AtomicOp::CompareSwap { compare: to.compare_add, swap: to.swap })
            }
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                atomic(AtomicOp::FetchAdd { add: wr.atomic_target().compare_add })
            }
            _ if self.kind == QpType::Ud => {
                let to = wr.ud();
                // Address handles are numbers in the form of pointers.
                let ah = (to.ah as usize).checked_sub(1).and_then(|id| state.ahs.get(id as u32));
                let (_, ah) = ah
                    .filter(|(node, _)| *node == self.node)
                    .ok_or_else(|| Error::invalid(OP, "the address handle is none of this device"))?;
                let peer = state.node_of(ah.dgid);
                // A controlled Q_Key stands for the pair's own (IBA 10.2.5).
                let is_controlled = to.remote_qkey >> 31 == 1;
                let qkey = if is_controlled { self.settings.qkey } else { to.remote_qkey };
                Work::Datagram { peer, qpn: to.remote_qpn, qkey }
            }
            _ => Work::Send,
        })
    }

    pub(super) fn post_recv(&mut self, state: &mut State, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in wrs.iter().enumerate() {
            self.post_one_recv(wr).map_err(|source| PostError { posted, source })?;
            state.note(What::PostReceive, [u64::from(self.num), wr.wr_id, 0, 0]);
        }
        if self.state == farcall_verbs::QpState::Err {
            self.flush_receives(state);
        }
        Ok(())
    }

    fn post_one_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        const OP: &str = "post_recv";
        if self.srq.is_some() {
            return Err(Error::invalid(OP, "the queue pair has a shared receive queue: post there"));
        }
        if !self.state.accepts_receives() {
            return Err(Error::InvalidState {
                operation: OP,
                object: format!("queue pair {:#x}", self.num),
                state: self.state.to_string(),
                remedy: "receives are accepted from INIT on",
            });
        }
        self.receives.push(wr)
    }

    /// Lets the queue pair send its next packet at a time.
    pub(super) fn pump_at(&mut self, state: &mut State, at_ns: u64) {
        if self.requester.set_pumping() {
            state.at(at_ns, Event::Pump { qp: self.id });
        }
    }
}

/// Copies the payload of an inline request.
///
/// # Safety
/// The elements must be readable.
unsafe fn gather_inline(wr: &SendWr<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(wr.len_bytes() as usize);
    for sge in wr.sges().iter().filter(|sge| sge.length > 0) {
        let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller's promise; the vector is private.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, sge.length as usize) });
    }
    bytes
}
