//! Posting of requests: the checks, and queueing.

use farcall_verbs::{Error, PostError, QpState, RecvWr, Result, SendFlags, SendWr, WrOpcode};
use farcall_wire::{Adapter, AtomicEth, AtomicOp, Reth, SendRequest, Work};

use super::qp::RoceQp;
use super::qp_context::{Posted, QpContext, Transport};
use super::state::State;
use crate::shm_transport::qp::gather_to_vec;
use crate::shm_transport::srq::Receive;

fn not_connected(operation: &'static str, qpn: u32) -> PostError {
    let source = Error::InvalidState {
        operation,
        object: format!("queue pair {qpn:#x}"),
        state: "RESET".into(),
        remedy: "connect it again",
    };
    PostError::new(0, source)
}

/// Returns the operation of a request.
fn work_of(wr: &SendWr<'_>, len_bytes: u64) -> Work {
    let rdma = wr.rdma();
    let target = Reth { addr: rdma.remote_addr, rkey: rdma.rkey, len_bytes: len_bytes as u32 };
    let to = wr.atomic_target();
    let atomic = |op| Work::Atomic(AtomicEth { addr: to.remote_addr, rkey: to.rkey, op });
    match wr.opcode {
        WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM => Work::Write(target),
        WrOpcode::READ => Work::Read(target),
        WrOpcode::ATOMIC_CMP_AND_SWP => {
            atomic(AtomicOp::CompareSwap { compare: to.compare_add, swap: to.swap })
        }
        WrOpcode::ATOMIC_FETCH_AND_ADD => atomic(AtomicOp::FetchAdd { add: to.compare_add }),
        _ => Work::Send,
    }
}

impl QpContext {
    fn queued(&self) -> usize {
        (self.posted - self.released) as usize
    }

    /// # Safety
    /// Inline elements must be readable.
    unsafe fn post_one(&mut self, transport: &mut Transport, wr: &SendWr<'_>, len_bytes: u64) {
        let has_imm = matches!(wr.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM);
        let request = SendRequest {
            work: work_of(wr, len_bytes),
            len_bytes,
            imm_be: has_imm.then_some(wr.imm_data_be),
            is_solicited: wr.send_flags.contains(SendFlags::SOLICITED),
            is_fenced: wr.send_flags.contains(SendFlags::FENCE),
        };
        let inline = wr.send_flags.contains(SendFlags::INLINE).then(|| {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            // SAFETY: by the contract of this function inline elements are readable.
            unsafe { gather_to_vec(&mut bytes, wr.sges()) };
            bytes
        });
        let is_signalled = self.signal_all || wr.send_flags.contains(SendFlags::SIGNALED);
        transport.post_send(request, Posted::new(wr, is_signalled, self.posted, inline));
        self.posted += 1;
    }
}

impl State {
    /// # Safety
    /// See [`farcall_verbs::RawQp::post_send`].
    pub(super) unsafe fn post_sends(&mut self, handle: &RoceQp, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Some(qp) = self.qps.get_mut(&handle.qpn) else {
            return Err(not_connected("post_send", handle.qpn));
        };
        let (transport, context) = (&mut qp.transport, &mut qp.context);
        transport.state().check_sends(handle.qpn).map_err(|source| PostError::new(0, source))?;
        let result = PostError::in_order(wrs, |_, wr| {
            let len_bytes = handle.send_rules.check(wr, context.queued())?;
            // SAFETY: by the contract of this function inline elements are readable.
            unsafe { context.post_one(transport, wr, len_bytes) };
            Ok(())
        });
        self.post_doorbell(handle.qpn);
        result
    }

    pub(super) fn check_sends(&self, handle: &RoceQp, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Some(qp) = self.qps.get(&handle.qpn) else { return Err(not_connected("post_send", handle.qpn)) };
        qp.transport.state().check_sends(handle.qpn).map_err(|source| PostError::new(0, source))?;
        let queued = qp.context.queued();
        PostError::in_order(wrs, |posted, wr| handle.send_rules.check(wr, queued + posted).map(drop))
    }

    pub(super) fn post_receives(&mut self, handle: &RoceQp, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let Some(qp) = self.qps.get_mut(&handle.qpn) else {
            return Err(not_connected("post_recv", handle.qpn));
        };
        let context = &mut qp.context;
        qp.transport.state().check_receives(handle.qpn).map_err(|source| PostError::new(0, source))?;
        let result = PostError::in_order(wrs, |_, wr| {
            handle.recv_rules.check(wr, context.unpolled_receives < context.cap.max_recv_wr as usize)?;
            context.receives.push_back(Receive::new(wr));
            context.unpolled_receives += 1;
            Ok(())
        });
        if qp.transport.state() == QpState::Err {
            self.with_qp(handle.qpn, |_, adapter| adapter.flush_receives());
        }
        result
    }
}
