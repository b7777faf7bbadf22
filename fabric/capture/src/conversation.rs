//! Synthesised packets of a queue pair whose requests use shared memory: those that its RNIC and the peer's would send
//! if no packet were lost. The peer's responses are derived from the completions; the peer's process records the peer's
//! own requests.

use std::collections::VecDeque;
use std::net::IpAddr;

use farcall_verbs::{
    AtomicTarget, Gid, Mtu, QpAttr, QpState, QpType, RdmaTarget, SendFlags, SendWr, Sge, Wc, WcStatus,
    WrOpcode,
};
use farcall_wire::codec::UDP_PORT;
use farcall_wire::codec::icrc::Flow;
use farcall_wire::{
    AccessDenied, Aeth, AtomicEth, AtomicOp, Deth, Nak, Operation, Packet, Psn, Reth, Segment, Syndrome,
};

use crate::recorder::{Batch, Direction};

/// Highest bit of a Q_Key: the sender's own Q_Key is used instead (IBA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;
/// Maximum message length of all devices.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Address of a queue pair in packets.
#[derive(Clone, Copy, Debug)]
pub struct QpEnd {
    /// The GID of its device.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: u32,
}

/// Source and destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Source GID.
    pub src: Gid,
    /// Destination.
    pub dst: QpEnd,
}

/// Appends `len_bytes` of a request's payload from `offset` on: the arguments are the gather list, offset, length and
/// destination.
pub trait Gather: FnMut(&[Sge], u64, u64, &mut Vec<u8>) -> Result<(), AccessDenied> {}

impl<F: FnMut(&[Sge], u64, u64, &mut Vec<u8>) -> Result<(), AccessDenied>> Gather for F {}

/// An outstanding request of a connection.
struct Pending {
    wr_id: u64,
    is_signalled: bool,
    /// `None` if nothing was sent because its elements break a rule.
    sent: Option<Sent>,
}

struct Sent {
    psn: Psn,
    packets: u32,
    /// Number of messages of the queue pair that the peer has executed, including this one.
    msn: u32,
    response: ResponseKind,
}

enum ResponseKind {
    Acknowledge,
    /// Data for the scatter list.
    Read(Vec<Sge>, u64),
    /// Eight bytes for the scatter list.
    Atomic(Vec<Sge>),
}

/// A posted request.
#[derive(Clone, Copy)]
pub struct Request<'a, 'sg> {
    /// The work request.
    pub wr: &'a SendWr<'sg>,
    /// Whether it generates a completion on success.
    pub is_signalled: bool,
    /// Source and destination, if it is a datagram.
    pub ends: Option<Ends>,
}

/// One queue pair's side of the packet exchange with its peers.
pub struct Conversation {
    transport: QpType,
    qpn: u32,
    /// Source GID of its packets.
    own: Gid,
    peer: QpEnd,
    qkey: u32,
    mtu_bytes: u64,
    /// PSN of the next packet.
    psn: Psn,
    messages: u32,
    pending: VecDeque<Pending>,
    pending_max: usize,
}

/// Returns the path that the CRC and the headers contain: IPv4 if both ends are IPv4.
fn flow(src: Gid, dst: Gid, src_qpn: u32) -> Flow {
    let [src, dst] = [src, dst].map(|gid| std::net::Ipv6Addr::from(gid.0));
    let (src, dst) = match (src.to_canonical(), dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => (src.into(), dst.into()),
        _ => (src.into(), dst.into()),
    };
    // Like devices, use a source port from the dynamic range that distinguishes flows (IBA annex A17.9.2).
    Flow { src, dst, src_port: 0xC000 | (src_qpn & 0x3FFF) as u16, dst_port: UDP_PORT }
}

fn packets_of(len_bytes: u64, mtu_bytes: u64) -> u32 {
    // At most 2^31 bytes in packets of at least 256 bytes, so the number fits into `u32`.
    len_bytes.div_ceil(mtu_bytes).max(1) as u32
}

impl Conversation {
    /// Creates the state of a new queue pair with up to `max_send_wr` outstanding requests.
    pub fn new(transport: QpType, qpn: u32, max_send_wr: u32) -> Self {
        let unspecified = Gid::default();
        Self {
            transport,
            qpn,
            own: unspecified,
            peer: QpEnd { gid: unspecified, qpn: 0 },
            qkey: 0,
            mtu_bytes: Mtu::Mtu4096.bytes().into(),
            psn: Psn::default(),
            messages: 0,
            pending: VecDeque::new(),
            pending_max: max_send_wr as usize,
        }
    }

    /// Records a modification of the queue pair. `own` is the new source GID of its packets, if it changes.
    pub fn modify(&mut self, attr: &QpAttr, own: Option<Gid>) {
        if attr.state == Some(QpState::Reset) {
            *self = Self::new(self.transport, self.qpn, self.pending_max as u32);
            return;
        }
        self.own = own.unwrap_or(self.own);
        self.qkey = attr.qkey.unwrap_or(self.qkey);
        self.peer.qpn = attr.dest_qp_num.unwrap_or(self.peer.qpn);
        if let Some(path) = attr.ah {
            self.peer.gid = path.dgid;
        }
        if let Some(mtu) = attr.path_mtu {
            self.mtu_bytes = mtu.bytes().into();
        }
        if let Some(psn) = attr.sq_psn {
            self.psn = Psn::new(psn);
        }
    }

    /// Records a posted request; `gather` reads its payload.
    pub fn posted(&mut self, batch: &mut Batch<'_>, request: &Request<'_, '_>, gather: impl Gather) {
        let wr = request.wr;
        let sent = self.send(batch, request, gather).ok();
        if self.transport != QpType::Rc {
            return;
        }
        let sent = sent.map(|(psn, packets)| {
            self.messages = self.messages.wrapping_add(1);
            let response = match wr.opcode {
                WrOpcode::READ => ResponseKind::Read(wr.sges().to_vec(), wr.len_bytes()),
                opcode if opcode.is_atomic() => ResponseKind::Atomic(wr.sges().to_vec()),
                _ => ResponseKind::Acknowledge,
            };
            Sent { psn, packets, msn: self.messages, response }
        });
        if self.pending.len() == self.pending_max {
            // Without a completion of its own the request has ended already; a later response acknowledges it.
            self.pending.pop_front();
        }
        self.pending.push_back(Pending { wr_id: wr.wr_id, is_signalled: request.is_signalled, sent });
    }

    /// Records the packets of a request; returns the first PSN and the number of PSNs consumed.
    fn send(
        &mut self,
        batch: &mut Batch<'_>,
        request: &Request<'_, '_>,
        mut gather: impl Gather,
    ) -> Result<(Psn, u32), AccessDenied> {
        let wr = request.wr;
        let (first, len_bytes) = (self.psn, wr.len_bytes());
        let is_too_long =
            len_bytes > MESSAGE_BYTES_MAX || self.transport == QpType::Ud && len_bytes > self.mtu_bytes;
        if is_too_long {
            return Err(AccessDenied);
        }
        let packets = packets_of(len_bytes, self.mtu_bytes);
        let data_packets = if wr.opcode.returns_data() { 1 } else { packets };
        let numbers = if wr.opcode.is_atomic() { 1 } else { packets };
        let Ends { src, dst } = request.ends.unwrap_or(Ends { src: self.own, dst: self.peer });
        let flow = flow(src, dst.gid, self.qpn);
        for index in 0..data_packets {
            let segment = Segment::new(index == 0, index + 1 == data_packets);
            let operation = self.operation(request, segment);
            let packet = Packet {
                transport: self.transport,
                operation: operation.ok_or(AccessDenied)?,
                solicited: segment.is_last() && wr.send_flags.contains(SendFlags::SOLICITED),
                ack_req: self.transport == QpType::Rc && segment.is_last(),
                dest_qpn: dst.qpn,
                psn: first.plus(index),
            };
            let offset = u64::from(index) * self.mtu_bytes;
            let taken = if wr.opcode.returns_data() { 0 } else { (len_bytes - offset).min(self.mtu_bytes) };
            batch.packet(Direction::Out, &flow, &packet, taken as usize, |to| {
                gather(wr.sges(), offset, taken, to)
            })?;
        }
        self.psn = first.plus(numbers);
        Ok((first, numbers))
    }

    /// Returns the operation of a packet of a request; `None` for opcodes that no device supports.
    fn operation(&self, request: &Request<'_, '_>, segment: Segment) -> Option<Operation> {
        let wr = request.wr;
        let imm_be = (segment.is_last() && wr.opcode.has_imm()).then_some(wr.imm_data_be);
        let reth = || {
            let RdmaTarget { remote_addr, rkey } = wr.rdma();
            Reth { addr: remote_addr, rkey, len_bytes: wr.len_bytes() as u32 }
        };
        Some(match wr.opcode {
            WrOpcode::SEND | WrOpcode::SEND_WITH_IMM if self.transport == QpType::Ud => {
                let asked = wr.ud().remote_qkey;
                let qkey = if asked & OWN_QKEY == 0 { asked } else { self.qkey };
                Operation::Datagram(Deth { qkey, src_qpn: self.qpn }, imm_be)
            }
            WrOpcode::SEND | WrOpcode::SEND_WITH_IMM => Operation::Send(segment, imm_be),
            WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM => {
                Operation::Write(segment, segment.is_first().then(reth), imm_be)
            }
            WrOpcode::READ => Operation::ReadRequest(reth()),
            opcode if opcode.is_atomic() => {
                let AtomicTarget { remote_addr, compare_add, swap, rkey } = wr.atomic_target();
                let op = match opcode {
                    WrOpcode::ATOMIC_CMP_AND_SWP => AtomicOp::CompareSwap { compare: compare_add, swap },
                    _ => AtomicOp::FetchAdd { add: compare_add },
                };
                Operation::AtomicRequest(AtomicEth { addr: remote_addr, rkey, op })
            }
            _ => return None,
        })
    }

    /// Returns whether a send completion may imply responses to record.
    pub fn awaits_responses(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records the responses implied by a polled send completion; `gather` reads the returned data.
    pub fn completed(&mut self, batch: &mut Batch<'_>, wc: &Wc, mut gather: impl Gather) {
        // Failures generate completions of unsignalled requests, too.
        let is_this = |request: &Pending| {
            request.wr_id == wc.wr_id && (request.is_signalled || !wc.status.is_success())
        };
        let Some(at) = self.pending.iter().position(is_this) else { return };
        // Requests without returned data share one acknowledgement, and a later response with data acknowledges them,
        // too.
        let mut unreported = None;
        for _ in 0..at {
            let Some(Pending { sent: Some(sent), .. }) = self.pending.pop_front() else { continue };
            self.response(batch, sent, &mut unreported, &mut gather);
        }
        let Some(last) = self.pending.pop_front() else { return };
        let nak = match wc.status {
            WcStatus::SUCCESS => None,
            WcStatus::REM_INV_REQ_ERR => Some(Nak::InvalidRequest),
            WcStatus::REM_ACCESS_ERR => Some(Nak::RemoteAccess),
            WcStatus::REM_OP_ERR => Some(Nak::RemoteOperation),
            // No response was received.
            _ => return self.acknowledge(batch, unreported),
        };
        match (last.sent, nak) {
            (Some(sent), None) => {
                self.response(batch, sent, &mut unreported, &mut gather);
                self.acknowledge(batch, unreported);
            }
            (Some(sent), Some(nak)) => {
                self.acknowledge(batch, unreported);
                let aeth = Aeth { syndrome: Syndrome::Nak(nak), msn: sent.msn.wrapping_sub(1) };
                self.respond(batch, sent.psn, Operation::Acknowledge(aeth), 0, |_| Ok(()));
            }
            (None, _) => self.acknowledge(batch, unreported),
        }
    }

    /// Records the response to an executed request, unless a later response acknowledges it.
    fn response(
        &self,
        batch: &mut Batch<'_>,
        sent: Sent,
        unreported: &mut Option<(Psn, u32)>,
        gather: &mut impl Gather,
    ) {
        let Sent { psn, packets, msn, response } = sent;
        let aeth = Aeth { syndrome: Syndrome::Ack, msn };
        match response {
            ResponseKind::Acknowledge => *unreported = Some((psn.plus(packets - 1), msn)),
            ResponseKind::Read(sges, len_bytes) => {
                *unreported = None;
                for index in 0..packets {
                    let segment = Segment::new(index == 0, index + 1 == packets);
                    let aeth = (segment != Segment::Middle).then_some(aeth);
                    let offset = u64::from(index) * self.mtu_bytes;
                    let taken = (len_bytes - offset).min(self.mtu_bytes);
                    let operation = Operation::ReadResponse(segment, aeth);
                    self.respond(batch, psn.plus(index), operation, taken as usize, |to| {
                        gather(&sges, offset, taken, to)
                    });
                }
            }
            ResponseKind::Atomic(sges) => {
                *unreported = None;
                let mut found = Vec::with_capacity(8);
                // The device stores the value in host byte order.
                if gather(&sges, 0, 8, &mut found).is_ok()
                    && let Some(found) = found.first_chunk()
                {
                    let operation = Operation::AtomicAcknowledge(aeth, u64::from_ne_bytes(*found));
                    self.respond(batch, psn, operation, 0, |_| Ok(()));
                }
            }
        }
    }

    fn acknowledge(&self, batch: &mut Batch<'_>, unreported: Option<(Psn, u32)>) {
        if let Some((psn, msn)) = unreported {
            let aeth = Aeth { syndrome: Syndrome::Ack, msn };
            self.respond(batch, psn, Operation::Acknowledge(aeth), 0, |_| Ok(()));
        }
    }

    /// Records a packet of the peer's response. It is omitted if its memory is no longer accessible, since its contents
    /// are unknown then.
    fn respond(
        &self,
        batch: &mut Batch<'_>,
        psn: Psn,
        operation: Operation,
        payload_bytes: usize,
        gather: impl FnOnce(&mut Vec<u8>) -> Result<(), AccessDenied>,
    ) {
        let flow = flow(self.peer.gid, self.own, self.peer.qpn);
        let (transport, dest_qpn) = (self.transport, self.qpn);
        let packet = Packet { transport, operation, solicited: false, ack_req: false, dest_qpn, psn };
        let _ = batch.packet(Direction::In, &flow, &packet, payload_bytes, gather);
    }
}
