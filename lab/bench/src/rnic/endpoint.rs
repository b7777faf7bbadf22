//! One end of a measurement: memory, one completion queue, and groups of queue pairs that are connected to those of
//! the other end.

use super::RnicError;
use super::handshake::{self, EndpointInfo, Ready};
use super::memory::{FILL_WORD, Memory, Places};
use super::operation::Operation;
use super::qp_group::{QpGroup, UnconnectedQpGroup};
use super::receives::Receives;
use super::task::Inlining;
use super::waiting::{Halt, Watch};
use crate::peer::{Control, PeerError};
use farcall_drive::arm_then_poll;
use farcall_link::{
    Chain, LocalSlice, Nic, Operation as Verb, QpSizes, QueuePair, Remote, SharedReceives, Transport,
    WorkRequest, send_tag,
};
use farcall_verbs::{
    Access, CompChannel, CqInitAttr, DeviceAttr, Endpoint, Nanos, Notify, Progress, RawCq, WaitSet, Wc,
};
use std::sync::Arc;

/// Length in bytes of the longest message that is inlined by default.
const INLINE_AUTO_MAX_BYTES: u32 = 256;
/// Maximum number of completions per poll.
const WCS: usize = 64;
/// Number of receives of a shared queue, if the device supports that many.
const SRQ_DEPTH_MAX: u32 = 4096;

/// Receives of each queue pair that receives datagrams only to introduce the other end.
const INTRODUCTION_RECEIVES: u32 = 4;

/// Configuration of an end.
#[derive(Debug, Clone)]
pub(super) struct EndpointPlan {
    /// Transport and number of queue pairs of each group.
    pub(super) groups: Vec<(Transport, u32)>,
    pub(super) places: Places,
    /// Maximum number of outstanding requests of a queue pair.
    pub(super) send_depth: u32,
    /// Receives posted to each queue pair (or its share of a shared queue); 0 if no operation consumes any.
    pub(super) receives: u32,
    /// Smallest sufficient number of receives, for completion queues without capacity for `receives`.
    pub(super) receives_min: u32,
    /// Number of consumed receives that are posted again together.
    pub(super) receive_batch: u32,
    /// `true` if each receive has a slot of its own; otherwise all use the first.
    pub(super) places_differ: bool,
    /// `true` if all queue pairs consume receives from one shared queue.
    pub(super) shares_receives: bool,
    /// `true` if the end sleeps on completion events instead of polling.
    pub(super) sleeps: bool,
    pub(super) inlining: Inlining,
    /// `true` if peers execute atomics on this end's memory.
    pub(super) with_atomics: bool,
}

/// Fields are dropped in this order: queue pairs before the objects that they use.
pub(super) struct BenchEndpoint {
    pub(super) groups: Vec<QpGroup>,
    pub(super) receives: Receives,
    cq: Box<dyn RawCq>,
    channel: Option<Arc<dyn CompChannel>>,
    pub(super) memory: Memory,
    remote: EndpointInfo,
    /// `true` if the memory of both ends may be polled for the last byte of a WRITE.
    pub(super) places_in_order: bool,
    pub(super) is_inline: bool,
    /// Messages of one queue pair for which the other end has receives.
    pub(super) receives_there: u32,
    /// Result of the last poll before sleeping.
    found: Result<usize, RnicError>,
    pub(super) wcs: [Wc; WCS],
}

impl BenchEndpoint {
    /// Connects to the process behind `control`, which executes the same steps.
    pub(super) fn connect(nic: &Nic, control: &Control, plan: &EndpointPlan) -> Result<Self, RnicError> {
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        access.set(Access::REMOTE_ATOMIC, plan.with_atomics);
        let memory = Memory::new(nic, plan.places, access)?;
        let channel = plan.sleeps.then(|| nic.context().create_comp_channel()).transpose()?;
        let qps: u32 = plan.groups.iter().map(|(_, count)| count).sum();
        let receives_each = plan.receives_each(qps, nic.attr())?;
        let send_depth = plan.send_depth.min(nic.attr().max_qp_wr);
        let cqe = qps.saturating_mul(send_depth + receives_each).min(nic.attr().max_cqe);
        let cq = nic.context().create_cq(&CqInitAttr { cqe, channel: channel.as_deref() })?;
        let srq_depth =
            qps.saturating_mul(receives_each).clamp(1, SRQ_DEPTH_MAX.min(nic.attr().max_srq_wr).max(1));
        let shared = plan.shares_receives.then(|| SharedReceives::new(nic, srq_depth)).transpose()?;
        let shared = shared.map(|shared| (shared, srq_depth));
        let config = QpSizes {
            send_depth,
            recv_depth: receives_each,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: plan.inlining.max_bytes(nic.attr().max_inline_data),
            access,
        };
        let srq = shared.as_ref().map(|(shared, _)| shared);
        let rows = plan.groups.iter().map(|group| UnconnectedQpGroup::new(nic, *group, &*cq, config, srq));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let mine = EndpointInfo {
            memory: memory.region().remote(),
            stride_bytes: plan.places.stride_bytes(),
            qps: rows.iter().map(|row| row.infos(nic)).collect(),
        };
        let remote = handshake::exchange(control, &mine)?;
        if remote.stride_bytes != mine.stride_bytes || remote.qps.len() != mine.qps.len() {
            return Err(
                PeerError::Exchange("the other end has other places or queue pairs".to_owned()).into()
            );
        }
        let groups = rows.into_iter().zip(&remote.qps).map(|(row, remote)| row.connect(nic, remote));
        let mut groups = groups.collect::<Result<Vec<_>, _>>()?;
        for qp in groups.iter_mut().flat_map(|group| &mut group.qps) {
            qp.attach(Arc::clone(memory.region()));
        }
        let receives = Receives::new(shared, &groups, receives_each, plan, &memory);
        let mut end = Self {
            groups,
            receives,
            cq,
            channel,
            memory,
            remote,
            places_in_order: false,
            receives_there: 0,
            is_inline: plan.places.len_bytes <= config.inline_max_bytes as usize,
            found: Ok(0),
            wcs: [Wc::default(); WCS],
        };
        end.start(control)?;
        Ok(end)
    }

    /// Posts the receives, then waits until the other end has posted its own.
    fn start(&mut self, control: &Control) -> Result<(), RnicError> {
        self.receives.post_all(&mut self.groups)?;
        let region = self.memory.region();
        let mut qps =
            self.groups.iter().filter(|group| group.transport != Transport::Ud).flat_map(|group| &group.qps);
        let mine = Ready {
            places_in_order: qps.all(|qp| qp.places_in_order(region)),
            receives_each: self.receives.each(),
        };
        let theirs = handshake::exchange(control, &mine)?;
        self.places_in_order = mine.places_in_order && theirs.places_in_order;
        self.receives_there = theirs.receives_each;
        self.exchange_first_datagrams(control)
    }

    /// Checks that a WRITE may be detected by its last byte.
    ///
    /// # Errors
    /// Returns an error if the order of bytes is neither guaranteed by the devices nor assumed by the task.
    pub(super) fn require_order(&self, is_assumed: bool) -> Result<(), RnicError> {
        if self.places_in_order || is_assumed { Ok(()) } else { Err(RnicError::NotInOrder) }
    }

    fn place_there(&self, place: usize) -> Remote<'_> {
        let offset = self.memory.places().incoming_offset_bytes(place);
        Remote { grant: &self.remote.memory, offset }
    }

    /// Returns requests that queue pair `qp` of `group` posts together, one for each element of `signalled`. A chain of
    /// a connected group can be used by all its queue pairs, one of datagrams only by `qp`.
    pub(super) fn chain(
        &self,
        operation: Operation,
        (group, qp): (usize, usize),
        local: LocalSlice,
        signalled: impl Iterator<Item = bool>,
    ) -> Result<Chain, RnicError> {
        let (send, imm) = (self.groups[group].send(qp), operation.has_imm().then_some(0));
        let (operation, local) = (verb(operation, send, self.place_there(0)), &[local]);
        let of = |is_signalled| WorkRequest { operation, local, imm, is_signalled };
        Ok(self.groups[group].qps[qp].chain(&signalled.map(of).collect::<Vec<_>>())?)
    }

    /// Posts one request to slot `to` of the other end. If it is signalled, its completion carries the index of the
    /// queue pair, counted over all groups.
    pub(super) fn post(
        &mut self,
        operation: Operation,
        (group, qp): (usize, usize),
        local: LocalSlice,
        to: usize,
        is_signalled: bool,
    ) -> Result<(), RnicError> {
        let imm = operation.has_imm().then_some(to as u32);
        let Self { groups, remote, memory, .. } = self;
        let offset = memory.places().incoming_offset_bytes(to);
        let operation = verb(operation, groups[group].send(qp), Remote { grant: &remote.memory, offset });
        let tag = qp + groups[..group].iter().map(|group| group.qps.len()).sum::<usize>();
        let request = WorkRequest { operation, local: &[local], imm, is_signalled };
        groups[group].qps[qp].post(&request, tag as u32)?;
        Ok(())
    }

    /// Polls completions into `wcs`. If there are none, spins once or sleeps, as configured.
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

    /// Polls completions into `wcs`.
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

    fn sleep(&mut self, watch: &mut Watch<'_>) -> Result<usize, Halt> {
        let Some(channel) = self.channel.clone() else { return Ok(0) };
        if arm_then_poll(self, Nanos(0)) == Progress::Again {
            watch.seen();
            return Ok(std::mem::replace(&mut self.found, Ok(0))?);
        }
        watch.sleep(channel.fd())?;
        while channel.poll_cq_event()?.is_some() {}
        Ok(0)
    }

    /// Records a completed signalled request.
    #[inline]
    pub(super) fn completed(&mut self, wc: &Wc) {
        qp(&mut self.groups, send_tag(wc) as usize).complete(wc);
    }

    /// Records one receive consumed by queue pair `qp`, and posts receives again when a batch has been consumed.
    #[inline]
    pub(super) fn received(&mut self, qp: usize) -> Result<(), RnicError> {
        self.received_many(qp, 1)
    }

    /// Records `count` receives consumed by queue pair `qp`.
    #[inline]
    pub(super) fn received_many(&mut self, qp: usize, count: u32) -> Result<(), RnicError> {
        self.receives.consumed(qp, count, &mut self.groups)
    }
}

/// Returns the verb of an operation on the remote location `at`.
fn verb<'a>(operation: Operation, send: Verb<'a>, at: Remote<'a>) -> Verb<'a> {
    match operation {
        Operation::Write | Operation::WriteImm => Verb::Write(at),
        Operation::Read => Verb::Read(at),
        Operation::Send | Operation::SendImm => send,
        // Compares with the value that is always there and swaps in the same value, so that each operation succeeds.
        Operation::CompareSwap => Verb::CompareSwap { at, compare: FILL_WORD, swap: FILL_WORD },
        Operation::FetchAdd => Verb::FetchAdd { at, add: 1 },
    }
}

/// Returns queue pair `index`, counted over all groups.
#[inline]
pub(super) fn qp(groups: &mut [QpGroup], index: usize) -> &mut QueuePair {
    let (group, qp) = group_of(groups, index);
    &mut groups[group].qps[qp]
}

/// Returns the group of queue pair `index`, counted over all groups, and its index in that group.
#[inline]
pub(super) fn group_of(groups: &[QpGroup], mut index: usize) -> (usize, usize) {
    for (number, group) in groups.iter().enumerate() {
        if index < group.qps.len() {
            return (number, index);
        }
        index -= group.qps.len();
    }
    unreachable!("queue pairs are counted when they are made")
}

/// An endpoint, so that a `WaitSet` can wait for it.
impl Endpoint for BenchEndpoint {
    fn progress(&mut self, _now: Nanos) -> Progress {
        self.found = self.poll();
        if matches!(self.found, Ok(0)) { Progress::IDLE } else { Progress::Again }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.cq.req_notify(Notify::Any)
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.channel.as_ref().map_or(-1, |channel| channel.fd()));
    }
}

impl EndpointPlan {
    /// Returns the number of receives per queue pair for which the completion queue can hold all completions.
    fn receives_each(&self, qps: u32, device: &DeviceAttr) -> Result<u32, RnicError> {
        let with_datagrams = self.groups.iter().any(|(transport, _)| *transport == Transport::Ud);
        let (receives, min) = match self.receives {
            // Introductions need receives.
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
    /// Returns the length in bytes of the longest message that is inlined.
    pub(super) fn max_bytes(self, device_max_bytes: u32) -> u32 {
        match self {
            Self::Auto => device_max_bytes.min(INLINE_AUTO_MAX_BYTES),
            Self::UpTo(bytes) => bytes.min(device_max_bytes),
        }
    }
}
