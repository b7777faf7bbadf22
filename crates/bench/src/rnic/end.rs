//! One end of a measurement: memory, one completion queue, and rows of queue pairs that are connected to the other end's.

use super::RnicError;
use super::handshake::{self, Card, Ready};
use super::lane::Lane;
use super::memory::{Memory, Places};
use super::nic::Nic;
use super::operation::Operation;
use super::receives::Receives;
use super::task::{Finding, Inlining, LastByte, ReceiveQueue};
use super::waiting::{Halt, Watch};
use farcall_link::Transport;
use farcall_verbs::{
    Access, AtomicTarget, CompChannel, CqInitAttr, DeviceAttr, Notify, Provider, QpCap, RawCq, RawQp, RawSrq,
    SendFlags, SendWr, Sge, SrqInitAttr, Wc,
};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Of messages that are inlined by default, the longest.
const INLINE_AUTO_MAX_BYTES: u32 = 256;
/// Completions taken at once.
const WCS: usize = 64;
/// Receives of a shared queue, where a device has as many.
const SRQ_DEPTH_MAX: u32 = 4096;

/// Receives of each queue pair for datagrams that only introduce the other end.
const INTRODUCTION_RECEIVES: u32 = 4;

/// What an end consists of.
#[derive(Debug, Clone)]
pub(super) struct EndPlan {
    /// A row of queue pairs for each: transport and number.
    pub(super) lanes: Vec<(Transport, u32)>,
    pub(super) places: Places,
    /// Requests outstanding on a queue pair at most.
    pub(super) send_depth: u32,
    /// Receives posted to each queue pair (or its share of a shared queue); 0 if nothing consumes any.
    pub(super) receives: u32,
    /// How few of them will do, where a completion queue has no room for more.
    pub(super) receives_min: u32,
    /// Receives posted again at once.
    pub(super) receive_batch: u32,
    /// Whether each receive has a place of its own; otherwise all have the first.
    pub(super) places_differ: bool,
    pub(super) receive_queue: ReceiveQueue,
    pub(super) finding: Finding,
    pub(super) inlining: Inlining,
    /// Whether peers execute atomics here.
    pub(super) with_atomics: bool,
}

/// The fields are dropped in order: queue pairs before what they use.
pub(super) struct End {
    pub(super) lanes: Vec<Lane>,
    pub(super) receives: Receives,
    cq: Box<dyn RawCq>,
    channel: Option<Arc<dyn CompChannel>>,
    pub(super) memory: Memory,
    pub(super) nic: Nic,
    remote: Card,
    /// Whether both ends' memory may be polled for the last byte of a WRITE.
    pub(super) places_in_order: bool,
    pub(super) is_inline: bool,
    /// Messages of one queue pair that the other end has receives for.
    pub(super) receives_there: u32,
    pub(super) wcs: [Wc; WCS],
}

impl End {
    /// Connects to the process behind `control`, which does the same.
    pub(super) fn connect(
        provider: &dyn Provider,
        control: &UnixStream,
        plan: &EndPlan,
    ) -> Result<Self, RnicError> {
        let nic = Nic::open(provider)?;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        access.set(Access::REMOTE_ATOMIC, plan.with_atomics);
        let memory = Memory::new(&*nic.pd, plan.places, access)?;
        let channel = match plan.finding {
            Finding::Events => Some(nic.context.create_comp_channel()?),
            Finding::Polling => None,
        };
        let qps: u32 = plan.lanes.iter().map(|(_, count)| count).sum();
        let receives_each = plan.receives_each(qps, &nic.attr)?;
        let send_depth = plan.send_depth.min(nic.attr.max_qp_wr);
        let cqe = qps.saturating_mul(send_depth + receives_each).min(nic.attr.max_cqe);
        let cq = nic.context.create_cq(&CqInitAttr { cqe, channel: channel.as_deref() })?;
        let shared = match plan.receive_queue {
            ReceiveQueue::Shared => {
                let depth =
                    qps.saturating_mul(receives_each).clamp(1, SRQ_DEPTH_MAX.min(nic.attr.max_srq_wr).max(1));
                Some((nic.pd.create_srq(&SrqInitAttr { max_wr: depth, max_sge: 1 })?, depth))
            }
            ReceiveQueue::Own => None,
        };
        let inline_max_bytes = plan.inlining.max_bytes(nic.attr.max_inline_data);
        let cap = QpCap {
            max_send_wr: send_depth,
            max_recv_wr: if shared.is_some() { 0 } else { receives_each.max(1) },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline_max_bytes,
        };
        let srq = shared.as_ref().map(|(srq, _): &(Box<dyn RawSrq>, u32)| &**srq);
        let lanes = plan
            .lanes
            .iter()
            .map(|(transport, count)| Lane::new(&nic, *transport, *count, cap, &*cq, srq, access))
            .collect::<Result<Vec<_>, _>>()?;
        let receives = Receives::new(shared, &lanes, receives_each, plan);
        let mine = Card {
            gid: nic.port.own_gid().0,
            lid: nic.port.attr.lid,
            addr: memory.region().addr() as u64,
            rkey: memory.region().rkey(),
            stride_bytes: plan.places.stride_bytes(),
            qp_nums: lanes.iter().map(Lane::qp_nums).collect(),
        };
        let remote = handshake::exchange(control, &mine)?;
        if remote.stride_bytes != mine.stride_bytes {
            return Err(RnicError::Handshake("the other end has other places for messages".to_owned()));
        }
        let mut end = Self {
            lanes,
            receives,
            cq,
            channel,
            memory,
            nic,
            remote,
            places_in_order: false,
            receives_there: 0,
            is_inline: plan.places.len_bytes <= inline_max_bytes as usize,
            wcs: [Wc::default(); WCS],
        };
        end.start(control)?;
        Ok(end)
    }

    /// Connects the queue pairs and posts receives; no end goes on before the other has, too.
    fn start(&mut self, control: &UnixStream) -> Result<(), RnicError> {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            lane.connect(&self.nic, &self.remote, number)?;
        }
        self.receives.post_all(&mut self.lanes, &self.memory)?;
        let region = self.memory.region();
        let mut qps =
            self.lanes.iter().filter(|lane| lane.transport != Transport::Ud).flat_map(|lane| &lane.qps);
        let mine = Ready {
            places_in_order: qps.all(|qp| qp.places_in_order(region)),
            receives_each: self.receives.each(),
        };
        let theirs = handshake::exchange(control, &mine)?;
        self.places_in_order = mine.places_in_order && theirs.places_in_order;
        self.receives_there = theirs.receives_each;
        self.introduce(control)
    }

    /// Whether a WRITE may be found by its last byte.
    ///
    /// # Errors
    /// When that is neither promised nor assumed.
    pub(super) fn require_order(&self, last_byte: LastByte) -> Result<(), RnicError> {
        let may_be = self.places_in_order || last_byte == LastByte::Assumed;
        if may_be { Ok(()) } else { Err(RnicError::NotInOrder) }
    }

    /// The request of `operation` over queue pair `qp` of `lane`, with what is local in `sges`, towards the other end's
    /// place `to`.
    pub(super) fn request<'a>(
        &self,
        operation: Operation,
        (lane, qp): (usize, usize),
        sges: &'a [Sge],
        to: usize,
    ) -> SendWr<'a> {
        let remote_addr = self.remote.addr + self.memory.places().incoming_offset_bytes(to) as u64;
        let rkey = self.remote.rkey;
        let atomic = |compare_add, swap| {
            SendWr::atomic(operation.opcode(), 0, sges, AtomicTarget { remote_addr, compare_add, swap, rkey })
        };
        let wr = match operation {
            Operation::Write => SendWr::write(0, sges, remote_addr, rkey),
            Operation::WriteImm => SendWr::write(0, sges, remote_addr, rkey).with_imm(to as u32),
            Operation::Read => SendWr::read(0, sges, remote_addr, rkey),
            Operation::Send | Operation::SendImm => match self.lanes[lane].datagram_target(qp) {
                Some(target) => SendWr::send_to(0, sges, target),
                None => SendWr::send(0, sges),
            },
            // Swaps what is always there for the same, so that each succeeds.
            Operation::CompareSwap => atomic(super::memory::FILL_WORD, super::memory::FILL_WORD),
            Operation::FetchAdd => atomic(1, 0),
        };
        let wr = if operation == Operation::SendImm { wr.with_imm(to as u32) } else { wr };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::INLINE, self.is_inline && !operation.returns_data());
        // A sleeper that asked for solicited events only is woken, too.
        flags.set(SendFlags::SOLICITED, operation.consumes_receive());
        wr.with_flags(flags)
    }

    /// Takes completions into `wcs`; if there are none, spins a turn or sleeps, as planned.
    #[inline]
    pub(super) fn look(&mut self, watch: &mut Watch<'_>) -> Result<usize, Halt> {
        let count = self.poll()?;
        if count > 0 {
            watch.seen();
            return Ok(count);
        }
        if self.channel.is_some() {
            return self.sleep(watch);
        }
        watch.nothing()?;
        Ok(0)
    }

    /// Takes completions into `wcs`.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<usize, RnicError> {
        let count = self.cq.poll(&mut self.wcs)?;
        for wc in &self.wcs[..count] {
            if !wc.status.is_success() {
                return Err(RnicError::Completion(wc.status));
            }
        }
        Ok(count)
    }

    /// Arms, looks once more, sleeps.
    fn sleep(&mut self, watch: &mut Watch<'_>) -> Result<usize, Halt> {
        let Some(channel) = self.channel.clone() else { return Ok(0) };
        self.cq.req_notify(Notify::Any)?;
        let count = self.poll()?;
        if count > 0 {
            watch.seen();
            return Ok(count);
        }
        // SAFETY: the channel is kept by `self` and open for as long as it lives.
        watch.sleep(unsafe { BorrowedFd::borrow_raw(channel.fd()) })?;
        while channel.poll_cq_event()?.is_some() {}
        Ok(0)
    }

    /// Takes note of a receive of queue pair `qp` and posts receives again when enough are consumed.
    #[inline]
    pub(super) fn received(&mut self, qp: usize) -> Result<(), RnicError> {
        self.received_many(qp, 1)
    }

    /// Takes note of `count` receives of queue pair `qp`.
    #[inline]
    pub(super) fn received_many(&mut self, qp: usize, count: u32) -> Result<(), RnicError> {
        self.receives.consumed(qp, count, &mut self.lanes, &self.memory)
    }
}

/// Queue pair `index`, counted through all lanes.
#[inline]
pub(super) fn qp(lanes: &mut [Lane], index: usize) -> &mut dyn RawQp {
    let mut index = index;
    for lane in lanes.iter_mut() {
        if index < lane.qps.len() {
            return &mut *lane.qps[index];
        }
        index -= lane.qps.len();
    }
    unreachable!("queue pairs are counted when they are made")
}

impl EndPlan {
    /// Receives of one queue pair such that all completions fit a completion queue.
    fn receives_each(&self, qps: u32, device: &DeviceAttr) -> Result<u32, RnicError> {
        let with_datagrams = self.lanes.iter().any(|(transport, _)| *transport == Transport::Ud);
        let (receives, min) = match self.receives {
            // Introductions need some.
            0 if with_datagrams => (INTRODUCTION_RECEIVES, 1),
            0 => return Ok(0),
            receives => (receives, self.receives_min),
        };
        let room = (device.max_cqe / qps.max(1)).saturating_sub(self.send_depth);
        if room < min {
            return Err(RnicError::Room { qps, cqe_max: device.max_cqe });
        }
        Ok(receives.min(room).min(device.max_qp_wr))
    }
}

impl Inlining {
    /// Bytes of the longest message that is inlined.
    pub(super) fn max_bytes(self, device_max_bytes: u32) -> u32 {
        match self {
            Self::Auto => device_max_bytes.min(INLINE_AUTO_MAX_BYTES),
            Self::UpTo(bytes) => bytes.min(device_max_bytes),
        }
    }
}
