//! Posting: checks and queues requests.

use std::ptr;

use farcall_verbs::{Error, PostError, QpState, QpType, RecvWr, Result, SendFlags, SendWr, WrOpcode};
use farcall_wire::{AtomicEth, AtomicOp, Reth, SendRequest, Work};

use super::nic::Nic;
use super::{Posted, Transport};
use crate::packet::Node;
use crate::trace::RecordKind;

impl Nic<'_> {
    /// Queues send requests as one doorbell.
    ///
    /// # Safety
    /// The memory of inline elements must be readable.
    pub(crate) unsafe fn post_send(
        &mut self,
        transport: &mut Transport,
        wrs: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        let mut result = Ok(());
        for (posted, wr) in wrs.iter().enumerate() {
            // SAFETY: the memory of inline elements is readable, by the contract of this function.
            if let Err(source) = unsafe { self.post_one(transport, wr) } {
                result = Err(PostError::new(posted, source));
                break;
            }
        }
        if transport.doorbell(self) {
            self.pump_after_doorbell();
        }
        result
    }

    /// Checks and queues one send request.
    ///
    /// # Safety
    /// The memory of inline elements must be readable.
    unsafe fn post_one(&mut self, transport: &mut Transport, wr: &SendWr<'_>) -> Result<()> {
        transport.state().check_sends(self.qp.num)?;
        let len_bytes =
            self.qp.rules.check(wr, (self.qp.progress.posted - self.qp.progress.reaped) as usize)?;
        let (work, dst) = self.work_of(transport, wr, len_bytes)?;
        // SAFETY: the request is inline, so its elements are readable by the contract of this function.
        let inline = wr.send_flags.contains(SendFlags::INLINE).then(|| unsafe { gather_inline(wr) });
        self.devices
            .note(RecordKind::Post, [u64::from(self.qp.num), wr.wr_id, u64::from(wr.opcode.0), len_bytes]);
        let has_imm = matches!(wr.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM);
        let request = SendRequest {
            work,
            len_bytes,
            imm_be: has_imm.then_some(wr.imm_data_be),
            is_solicited: wr.send_flags.contains(SendFlags::SOLICITED),
            is_fenced: wr.send_flags.contains(SendFlags::FENCE),
        };
        let posted = Posted {
            wr_id: wr.wr_id,
            is_signalled: self.qp.signals_all || wr.send_flags.contains(SendFlags::SIGNALED),
            ordinal: self.qp.progress.posted,
            dst,
            sges: wr.sges().to_vec(),
            inline,
        };
        transport.post_send(request, posted);
        self.qp.progress.posted += 1;
        Ok(())
    }

    /// Returns the operation of a request and, for a datagram, its destination.
    fn work_of(
        &self,
        transport: &Transport,
        wr: &SendWr<'_>,
        len_bytes: u64,
    ) -> Result<(Work, Option<Node>)> {
        let rdma = wr.rdma();
        let target = Reth { addr: rdma.remote_addr, rkey: rdma.rkey, len_bytes: len_bytes as u32 };
        let atomic = |op| {
            let to = wr.atomic_target();
            Work::Atomic(AtomicEth { addr: to.remote_addr, rkey: to.rkey, op })
        };
        let work = match wr.opcode {
            WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM => Work::Write(target),
            WrOpcode::READ => Work::Read(target),
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                let to = wr.atomic_target();
                atomic(AtomicOp::CompareSwap { compare: to.compare_add, swap: to.swap })
            }
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                atomic(AtomicOp::FetchAdd { add: wr.atomic_target().compare_add })
            }
            _ if transport.config().transport == QpType::Ud => return self.datagram(transport, wr),
            _ => Work::Send,
        };
        Ok((work, None))
    }

    fn datagram(&self, transport: &Transport, wr: &SendWr<'_>) -> Result<(Work, Option<Node>)> {
        let to = wr.ud();
        // Address handles are numbers stored as pointers.
        let ah = (to.ah as usize).checked_sub(1).and_then(|id| self.devices.ahs.get(id as u32));
        let (_, ah) = ah
            .filter(|(node, _)| *node == self.qp.node)
            .ok_or_else(|| Error::invalid("post_send", "the address handle is none of this device"))?;
        // A controlled Q_Key (highest bit set) selects the queue pair's own (IBA 10.2.5).
        let is_controlled = to.remote_qkey >> 31 == 1;
        let qkey = if is_controlled { transport.qkey() } else { to.remote_qkey };
        Ok((Work::Datagram { dest_qpn: to.remote_qpn, qkey }, self.devices.nodes.of(ah.dgid)))
    }

    pub(crate) fn post_recv(&mut self, transport: &Transport, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        for (posted, wr) in wrs.iter().enumerate() {
            let checked = transport.state().check_receives(self.qp.num);
            checked
                .and_then(|()| self.qp.receives.push(wr))
                .map_err(|source| PostError::new(posted, source))?;
            self.devices.note(RecordKind::PostReceive, [u64::from(self.qp.num), wr.wr_id, 0, 0]);
        }
        if transport.state() == QpState::Err {
            farcall_wire::Adapter::flush_receives(self);
        }
        Ok(())
    }
}

/// Copies the payload of an inline request.
///
/// # Safety
/// The memory of the elements must be readable.
unsafe fn gather_inline(wr: &SendWr<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(wr.len_bytes() as usize);
    for sge in wr.sges().iter().filter(|sge| sge.length > 0) {
        let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the element's memory is readable, by the contract of this function; the vector is separate memory.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, sge.length as usize) });
    }
    bytes
}
