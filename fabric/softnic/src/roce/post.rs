//! Posting of requests: the checks, and queueing.

use farcall_verbs::{Error, PostError, QpState, RecvWr, Result, SendFlags, SendWr, WrOpcode};
use farcall_wire::{Adapter, AtomicEth, AtomicOp, Reth, SendRequest, Work};

use super::qp::{NetPair, Posted, Receive, Side, Transport};
use super::state::State;
use crate::shm_transport::qp::gather_to_vec;

fn gone(operation: &'static str, qpn: u32) -> PostError {
    let source = Error::InvalidState {
        operation,
        object: format!("queue pair {qpn:#x}"),
        state: "RESET".into(),
        remedy: "connect it anew",
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

impl Side {
    fn queued(&self) -> usize {
        (self.posted - self.reaped) as usize
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
    pub(super) unsafe fn post_sends(&mut self, of: &NetPair, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Some(pair) = self.pairs.get_mut(&of.qpn) else { return Err(gone("post_send", of.qpn)) };
        let (transport, side) = (&mut pair.transport, &mut pair.side);
        transport.state().check_sends(of.qpn).map_err(|source| PostError::new(0, source))?;
        let result = PostError::in_order(wrs, |_, wr| {
            let len_bytes = of.send_rules.check(wr, side.queued())?;
            // SAFETY: by the contract of this function inline elements are readable.
            unsafe { side.post_one(transport, wr, len_bytes) };
            Ok(())
        });
        self.ring(of.qpn);
        result
    }

    pub(super) fn check_sends(&self, of: &NetPair, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Some(pair) = self.pairs.get(&of.qpn) else { return Err(gone("post_send", of.qpn)) };
        pair.transport.state().check_sends(of.qpn).map_err(|source| PostError::new(0, source))?;
        let queued = pair.side.queued();
        PostError::in_order(wrs, |posted, wr| of.send_rules.check(wr, queued + posted).map(drop))
    }

    pub(super) fn post_receives(&mut self, of: &NetPair, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let Some(pair) = self.pairs.get_mut(&of.qpn) else { return Err(gone("post_recv", of.qpn)) };
        let side = &mut pair.side;
        pair.transport.state().check_receives(of.qpn).map_err(|source| PostError::new(0, source))?;
        let result = PostError::in_order(wrs, |_, wr| {
            of.recv_rules.check(wr, side.unpolled_receives < side.cap.max_recv_wr as usize)?;
            side.receives.push_back(Receive::new(wr));
            side.unpolled_receives += 1;
            Ok(())
        });
        if pair.transport.state() == QpState::Err {
            self.with_pair(of.qpn, |_, nic| nic.flush_receives());
        }
        result
    }
}
