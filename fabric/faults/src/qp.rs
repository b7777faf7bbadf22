//! Queue pairs that execute the fault decisions about their requests.

use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{
    AsyncEvent, AsyncEventKind, PostError, QpAttr, QpCap, QpState, QpType, RawMr, RawQp, RecvWr, Result,
    SendFlags, SendWr, UdTarget, WcOpcode, WrOpcode,
};

use crate::cq::Core;
use crate::events::Events;
use crate::fault_planner::{Decision, FaultPlanner, Retries};
use crate::plan::{Kind, Plan, refused};
use crate::qp_state::{FaultyQpState, FaultyQpStates};
use crate::timer::now_ns;

pub(crate) struct FaultyQp {
    /// `None` only during drop.
    inner: Option<Box<dyn RawQp>>,
    qp_num: u32,
    plan: Arc<Plan>,
    qp_state: Arc<FaultyQpState>,
    qp_states: Arc<FaultyQpStates>,
    events: Arc<Events>,
    send_cq: Arc<Core>,
    recv_cq: Arc<Core>,
    sq_sig_all: bool,
    planner: FaultPlanner,
    /// Number of sends and of receives with a decision, and number of faults.
    sends: u64,
    receives: u64,
    faults: u64,
}

/// Returns the refusal of a request after `posted` requests.
fn full(posted: usize) -> PostError {
    PostError::new(posted, refused("post_send", "places in the send queue"))
}

/// Returns the opcode of a request's completion.
fn completes_as(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
        _ => WcOpcode::SEND,
    }
}

impl FaultyQp {
    pub(crate) fn new(
        inner: Box<dyn RawQp>,
        plan: &Arc<Plan>,
        (qp_states, events): (Arc<FaultyQpStates>, Arc<Events>),
        (send_cq, recv_cq): (Arc<Core>, Arc<Core>),
        sq_sig_all: bool,
    ) -> Self {
        let (qp_num, qp_type, index) = (inner.qp_num(), inner.qp_type(), plan.next_qp_index());
        let has_substitutes = qp_type == QpType::Uc && plan.spec.drop.is_possible();
        let qp_state = Arc::new(FaultyQpState::new(index, has_substitutes));
        qp_states.insert(qp_num, &qp_state);
        Self {
            inner: Some(inner),
            qp_num,
            plan: plan.clone(),
            qp_state,
            qp_states,
            events,
            send_cq,
            recv_cq,
            sq_sig_all,
            planner: FaultPlanner { qp_type, index, retries: Retries::NONE },
            sends: 0,
            receives: 0,
            faults: 0,
        }
    }

    fn inner(&self) -> &dyn RawQp {
        self.inner.as_deref().expect("there until dropped")
    }

    fn inner_mut(&mut self) -> &mut dyn RawQp {
        self.inner.as_deref_mut().expect("there until dropped")
    }

    /// Returns whether the request with this number may have a fault, after `faults` faults.
    fn is_open_to_faults(&self, number: u64, faults: u64) -> bool {
        let spec = &self.plan.spec;
        number >= spec.after && spec.limit.is_none_or(|limit| faults < limit)
    }

    /// Returns the index of the first of these requests that would be refused if they were posted now.
    fn refusal_ahead(&self, wrs: &[SendWr<'_>]) -> Option<usize> {
        if !self.plan.spec.post_full.is_possible() || self.inner().state() != QpState::Rts {
            return None;
        }
        let mut faults = self.faults;
        for (at, wr) in wrs.iter().enumerate() {
            let number = self.sends + at as u64;
            if !self.is_open_to_faults(number, faults) {
                continue;
            }
            match self.planner.decide(&self.plan, wr.opcode, number) {
                Decision::Pass => {}
                Decision::Refuse => return Some(at),
                // There are no decisions about requests posted after that.
                Decision::Break(..) | Decision::Fatal(_) => return None,
                Decision::Lose | Decision::Late(..) => faults += 1,
            }
        }
        None
    }

    /// Decides about the next request and counts it.
    fn next_decision(&mut self, opcode: WrOpcode) -> Decision {
        if self.inner().state() != QpState::Rts {
            return Decision::Pass;
        }
        let number = self.sends;
        self.sends += 1;
        if !self.is_open_to_faults(number, self.faults) {
            return Decision::Pass;
        }
        let decision = self.planner.decide(&self.plan, opcode, number);
        let kind = match decision {
            Decision::Pass => return decision,
            Decision::Refuse => Kind::PostFull,
            Decision::Lose => Kind::Drop,
            Decision::Break(kind, ..) | Decision::Fatal(kind) | Decision::Late(kind, _) => kind,
        };
        self.met(kind, number);
        decision
    }

    fn met(&mut self, kind: Kind, number: u64) {
        self.faults += 1;
        self.plan.record_fault(kind, Some((self.qp_num, self.planner.index)), number);
    }

    /// Delays the sends that complete from now on by `late`.
    fn delay_sends(&self, late: Duration) {
        if !late.is_zero() {
            // Requests that completed earlier are not delayed.
            self.send_cq.stage_now();
            let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
            self.qp_state.delay_sends_until(now_ns().saturating_add(late_ns));
        }
    }

    /// Moves the queue pair to the error state, which flushes all posted requests.
    fn fail(&mut self) {
        // This transition is always allowed from a state in which requests are executed.
        let _ = self.inner_mut().modify(&QpAttr::to(QpState::Err));
    }

    fn fail_fatally(&mut self) {
        self.fail();
        self.events.raise(AsyncEvent { kind: AsyncEventKind::QpFatal, element: self.qp_num });
    }

    /// Posts one request unchanged, and records `instead_of` for its completion.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn pass(&mut self, wr: &SendWr<'_>, instead_of: Option<WcOpcode>) -> Result<(), PostError> {
        // SAFETY: this function and the inner `post_send` have the same contract, and the request is unchanged.
        unsafe { self.inner_mut().post_send(std::slice::from_ref(wr)) }?;
        if self.sq_sig_all || wr.send_flags.contains(SendFlags::SIGNALED) {
            self.qp_state.posted(instead_of);
        }
        Ok(())
    }

    /// Posts a request that completes like this one, but whose message does not arrive.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn lose(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.planner.qp_type == QpType::Ud {
            let to = wr.ud();
            // A Q_Key that differs from the destination's. The cleared top bit keeps it from meaning the local Q_Key.
            let remote_qkey = (to.remote_qkey ^ 0x2bad_cafe) & 0x7fff_ffff;
            let mut lost = SendWr::send_to(wr.wr_id, wr.sges(), UdTarget { remote_qkey, ..to });
            (lost.opcode, lost.send_flags, lost.imm_data_be) = (wr.opcode, wr.send_flags, wr.imm_data_be);
            // SAFETY: `lost` has the gather list and address handle of `wr`, which stay valid by the contract of this
            // function.
            return unsafe { self.pass(&lost, None) };
        }
        // A WRITE of zero bytes needs no key and no receive (IBA 9.7.4.1.5). The program may reuse the payload's memory
        // when it completes.
        let flags = wr.send_flags - SendFlags::SOLICITED;
        let nothing = SendWr::write(wr.wr_id, &[], 0, 0).with_flags(flags);
        // SAFETY: the request has an empty gather list, so it refers to no memory.
        unsafe { self.pass(&nothing, Some(completes_as(wr.opcode))) }
    }

    /// Posts one request and executes the decision about it.
    ///
    /// # Safety
    /// See [`RawQp::post_send`].
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match self.next_decision(wr.opcode) {
            Decision::Pass => {}
            Decision::Refuse => {
                return Err(full(0));
            }
            // SAFETY: `lose` has the same contract as this function.
            Decision::Lose => return unsafe { self.lose(wr) },
            Decision::Late(_, late) => self.delay_sends(late),
            Decision::Fatal(_) => self.fail_fatally(),
            Decision::Break(_, status, late) => {
                self.delay_sends(late);
                // The oldest outstanding request is the one that fails: flushes arrive in order.
                self.qp_state.fails_with(status);
                // Hold the receive queue's lock, so that no thread polls the flushed receives before the failed
                // request, which shows the cause.
                let recv_cq = self.recv_cq.clone();
                let _unseen = recv_cq.lock();
                self.fail();
                // SAFETY: `pass` has the same contract as this function.
                return unsafe { self.pass(wr, None) };
            }
        }
        // SAFETY: `pass` has the same contract as this function.
        unsafe { self.pass(wr, None) }
    }
}

impl RawQp for FaultyQp {
    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.planner.qp_type
    }

    fn state(&self) -> QpState {
        self.inner().state()
    }

    fn cap(&self) -> QpCap {
        self.inner().cap()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.inner_mut().modify(attr)?;
        self.planner.retries.modify(attr);
        if attr.state == Some(QpState::Reset) {
            self.qp_state.reset();
            self.send_cq.discard(self.qp_num);
            self.recv_cq.discard(self.qp_num);
        }
        Ok(())
    }

    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in wrs.iter().enumerate() {
            // SAFETY: `post_one` has the same contract for one request as this function for all of them.
            unsafe { self.post_one(wr) }.map_err(|error| PostError { posted, ..error })?;
        }
        Ok(())
    }

    /// Checks in advance: a batch that contains a request to be refused is refused completely.
    unsafe fn check_sends(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: this function and the inner `check_sends` have the same contract, and the requests are unchanged.
        unsafe { self.inner_mut().check_sends(wrs) }?;
        let Some(posted) = self.refusal_ahead(wrs) else { return Ok(()) };
        // The requests up to the refused one consume their numbers, so that a retry of the same batch gets other
        // decisions.
        self.sends += posted as u64 + 1;
        self.met(Kind::PostFull, self.sends - 1);
        Err(full(posted))
    }

    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in wrs.iter().enumerate() {
            if self.plan.spec.qp_fatal.is_possible() && self.inner().state().responds() {
                let number = self.receives;
                self.receives += 1;
                let bits = self.plan.bits(Kind::QpFatalReceive, self.planner.index, number);
                if self.is_open_to_faults(number, self.faults) && self.plan.spec.qp_fatal.hits(bits) {
                    self.met(Kind::QpFatalReceive, number);
                    self.fail_fatally();
                }
            }
            // SAFETY: this function and the inner `post_recv` have the same contract, and the request is unchanged.
            let result = unsafe { self.inner_mut().post_recv(std::slice::from_ref(wr)) };
            result.map_err(|error| PostError { posted, ..error })?;
        }
        Ok(())
    }

    fn places_in_order(&self, mr: &dyn RawMr) -> bool {
        self.inner().places_in_order(mr)
    }

    fn is_quiesced(&self) -> bool {
        self.inner().is_quiesced()
    }
}

impl Drop for FaultyQp {
    fn drop(&mut self) {
        // Before the number can be reused for another queue pair.
        self.qp_states.remove(self.qp_num);
        self.inner = None;
        self.send_cq.discard(self.qp_num);
        self.recv_cq.discard(self.qp_num);
    }
}
