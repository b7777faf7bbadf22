//! Requests, and posting them.

use farcall_verbs::{AtomicTarget, QpType, RdmaTarget, SendFlags, Sge, WcStatus, WrOpcode};

use super::End;
use crate::executor::{Call, Handle, Mr, Qp, RecvRequest, Refusal, SendRequest, Target};
use crate::finding::Verdict;
use crate::setup::QKEY;

/// Length of the GRH that precedes every datagram in its receive.
pub(crate) const GRH_BYTES: u32 = 40;

/// Immediate data of requests that carry some.
pub(crate) const IMM: u32 = 0x0102_0304;

impl End {
    /// Returns an element of the case's region.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        self.mr.sge(offset, len)
    }

    /// Returns the target of SENDs to `b`'s queue pair.
    pub(crate) fn message_target(&self, b: &End) -> Target {
        match self.ah {
            0 => Target::Connection,
            ah => Target::Datagram { ah, qpn: b.qp.qpn, qkey: QKEY },
        }
    }

    /// Returns a signalled request of `len` bytes (atomics: 8) between offset 0 of this end's region and offset
    /// `remote` of `b`'s. CAS compares with 0 and stores 1, FAA adds 1.
    pub(crate) fn request(&self, op: WrOpcode, wr_id: u64, b: &End, len: u32, remote: u64) -> SendRequest {
        let len = if op.is_atomic() { 8 } else { len };
        self.request_from(op, wr_id, vec![self.sge(0, len)], b, b.mr.addr.wrapping_add(remote), b.mr.rkey)
    }

    /// Like `request`, with all parameters specified.
    pub(crate) fn request_from(
        &self,
        op: WrOpcode,
        wr_id: u64,
        sges: Vec<Sge>,
        b: &End,
        remote_addr: u64,
        rkey: u32,
    ) -> SendRequest {
        let atomic =
            |compare_add, swap| Target::Atomic(AtomicTarget { remote_addr, rkey, compare_add, swap });
        let target = match op {
            WrOpcode::ATOMIC_CMP_AND_SWP => atomic(0, 1),
            WrOpcode::ATOMIC_FETCH_AND_ADD => atomic(1, 0),
            op if op.is_one_sided() => Target::Memory(RdmaTarget { remote_addr, rkey }),
            _ => self.message_target(b),
        };
        let imm = if op.has_imm() { IMM } else { 0 };
        SendRequest { wr_id, opcode: op, flags: SendFlags::SIGNALED, imm, sges, target }
    }

    /// Posts a send request, and expects its success.
    pub(crate) fn complete(&mut self, request: SendRequest) -> Verdict {
        self.complete_as(request, WcStatus::SUCCESS)
    }

    /// Posts a send request, and expects its completion with `status`.
    pub(crate) fn complete_as(&mut self, request: SendRequest, status: WcStatus) -> Verdict {
        let wr_id = request.wr_id;
        self.post(request)?;
        self.expect(wr_id, status)
    }

    /// SENDs a message, and expects its success at this end.
    pub(crate) fn complete_send(&mut self, wr_id: u64, b: &End) -> Verdict {
        self.complete(self.request(WrOpcode::SEND, wr_id, b, 8, 0))
    }

    pub(crate) fn post_on(&mut self, qp: Qp, requests: Vec<SendRequest>) -> Result<(), Refusal> {
        self.done(&Call::PostSend { qp: qp.handle, requests })
    }

    pub(crate) fn post(&mut self, request: SendRequest) -> Result<(), Refusal> {
        self.post_on(self.qp, vec![request])
    }

    /// Posts a signalled SEND of the first eight bytes of the case's region.
    pub(crate) fn send(&mut self, wr_id: u64, b: &End) -> Result<(), Refusal> {
        self.send_on(self.qp, wr_id, b)
    }

    pub(crate) fn send_on(&mut self, qp: Qp, wr_id: u64, b: &End) -> Result<(), Refusal> {
        self.post_on(qp, vec![self.request(WrOpcode::SEND, wr_id, b, 8, 0)])
    }

    /// Returns a WRITE with a key that `b` does not have.
    pub(crate) fn write_with_wrong_key(&self, wr_id: u64, b: &End) -> SendRequest {
        self.request_from(WrOpcode::WRITE, wr_id, vec![self.sge(0, 8)], b, b.mr.addr, b.mr.rkey ^ 0x5A5A)
    }

    /// Posts receives to a queue pair or a shared receive queue, as one doorbell.
    pub(crate) fn recv_all(&mut self, queue: Handle, requests: Vec<RecvRequest>) -> Result<(), Refusal> {
        self.done(&Call::PostRecv { queue, requests })
    }

    /// Posts a receive to a queue pair or a shared receive queue.
    pub(crate) fn recv_on(&mut self, queue: Handle, wr_id: u64, sges: Vec<Sge>) -> Result<(), Refusal> {
        self.recv_all(queue, vec![RecvRequest { wr_id, sges }])
    }

    /// Posts a receive to the queue from which the case's queue pair consumes receives.
    pub(crate) fn recv_into(&mut self, wr_id: u64, sges: Vec<Sge>) -> Result<(), Refusal> {
        let queue = self.srq.map_or(self.qp.handle, |(srq, _)| srq);
        self.recv_on(queue, wr_id, sges)
    }

    /// Posts a receive of one element of the case's region.
    pub(crate) fn recv(&mut self, wr_id: u64, offset: u64, len: u32) -> Result<(), Refusal> {
        self.recv_into(wr_id, vec![self.sge(offset, len)])
    }

    /// Returns the number of bytes in front of every message in its receive.
    pub(crate) fn grh_bytes(&self) -> u32 {
        if self.setup.qp_type == QpType::Ud { GRH_BYTES } else { 0 }
    }

    /// Returns an element in which a message of `len` bytes is placed at an offset of the case's region, after its GRH
    /// if it has one.
    pub(crate) fn message_sge(&self, offset: u64, len: u32) -> Sge {
        let grh_bytes = self.grh_bytes();
        self.sge(offset - u64::from(grh_bytes), grh_bytes + len)
    }

    /// Posts a receive with such an element.
    pub(crate) fn recv_message(&mut self, wr_id: u64, offset: u64, len: u32) -> Result<(), Refusal> {
        self.recv_into(wr_id, vec![self.message_sge(offset, len)])
    }

    /// Posts such a receive if the operation of the other end consumes one.
    pub(crate) fn recv_for(
        &mut self,
        op: WrOpcode,
        wr_id: u64,
        offset: u64,
        len: u32,
    ) -> Result<(), Refusal> {
        if op.consumes_receive() { self.recv_message(wr_id, offset, len) } else { Ok(()) }
    }
}

/// SENDs a message from `a` into the receive `received` of `b`, and expects success at both ends.
pub(crate) fn deliver(a: &mut End, b: &mut End, sent: u64, received: u64) -> Verdict {
    deliver_on(a, b, (a.qp, b.qp), sent, received)
}

/// Like `deliver`, over a pair of queue pairs.
pub(crate) fn deliver_on(a: &mut End, b: &mut End, (qa, qb): (Qp, Qp), sent: u64, received: u64) -> Verdict {
    a.send_on(qa, sent, b)?;
    a.expect_at(qa, sent, WcStatus::SUCCESS)?;
    b.expect_at(qb, received, WcStatus::SUCCESS).map(drop)
}

impl Mr {
    /// Returns an element of the region.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr + offset, length: len, lkey: self.lkey }
    }
}

impl SendRequest {
    /// Returns the request without the signalled flag.
    pub(crate) fn unsignaled(mut self) -> Self {
        self.flags -= SendFlags::SIGNALED;
        self
    }

    /// Returns the request with additional flags.
    pub(crate) fn flagged(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }
}
