//! Performance of a provider's verbs between two processes: latency, rate and bandwidth of each operation over each
//! transport.
//!
//! The measuring process is the initiator; its peer is the target. Latencies are round trips (a message in each
//! direction) or times until a completion. Throughput counts the messages that arrived. A [`RnicTask`] is plain data
//! that is sent to the peer, so both ends use one description of the measurement.

mod direction;
pub mod echo;
mod endpoint;
mod first_datagrams;
mod flow;
mod handshake;
mod latency;
mod legality;
mod memory;
mod nic;
mod operation;
mod qp_group;
mod receives;
mod target;
mod task;
mod throughput;
mod waiting;

pub(crate) use direction::OneOfMany;
pub use direction::{Direction, Issuer, Rate, rate};
pub use legality::Illegal;
pub use nic::Survey;
pub use operation::{ATOMIC_LEN_BYTES, Operation};
pub use target::Target;
pub use task::{Inlining, RnicTask, RnicTest, Tuning};

use crate::measure::{CoreError, LatencySummary, ProcessError, pin_thread};
use crate::peer::{BothEnds, Meter, PairPlan, Peer, PeerError, PeerPlace, PeerTask};
use endpoint::BenchEndpoint;
use farcall::select::{SelectedNic, Selection};
use farcall_link::{PostRefused, Transport};
use farcall_verbs::{WcStatus, with_sources};
use handshake::{Stop, TargetCounts};
use memory::FILL_WORD;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use waiting::Watch;

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RnicResult {
    /// The measured task.
    pub task: RnicTask,
    /// Latency tests only: round trips of a ping-pong, or times until the completion.
    pub latency: Option<LatencySummary>,
    /// Messages a second in one direction; those that arrived, where that is known.
    pub messages_per_second: f64,
    /// Number of recorded round trips, completions or messages.
    pub samples: u64,
    /// Total number of posted requests, warm-up included.
    pub sent: u64,
    /// Number of requests that did not arrive (unreliable transports).
    pub lost: u64,
    /// `true` if messages were inlined.
    pub is_inline: bool,
    /// Processor time of both ends.
    pub cores: BothEnds,
}

impl RnicResult {
    /// Returns payload bytes a second in one direction.
    pub fn bytes_per_second(&self) -> f64 {
        self.messages_per_second * self.task.len_bytes as f64
    }
}

/// Reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum RnicError {
    /// The other process failed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The measurement is not possible, or not on this device.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostRefused),
    /// The processor time of a process could not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A request failed.
    #[error("a work request failed: {0}")]
    Completion(WcStatus),
    /// A measurement in a separate process failed.
    #[error("{0}")]
    Apart(String),
    /// A WRITE cannot be detected by its last byte.
    #[error(
        "this device does not promise to place a WRITE's last byte last, so its target cannot find it by polling; \
         measure WRITE_IMM, or WRITE until its completion, or take it on trust (--assume-order), as most RNICs keep it"
    )]
    NotInOrder,
    /// The completion queue cannot hold all completions of outstanding requests.
    #[error(
        "a completion queue of {cqe_max} entries has no room for the requests and receives of {qps} queue pairs; \
         use fewer, or a smaller window"
    )]
    Room {
        /// Number of queue pairs.
        qps: u32,
        /// Maximum length of a completion queue of the device.
        cqe_max: u32,
    },
    /// The target has fewer receives than a chain of messages needs.
    #[error(
        "the target has receives for {capacity} messages of each queue pair, and a chain has {chain}; use shorter chains or \
         fewer queue pairs, or do without a shared receive queue"
    )]
    Capacity {
        /// Messages of a chain.
        chain: u32,
        /// Receives for each queue pair.
        capacity: u32,
    },
    /// No progress for this duration.
    #[error("nothing happened for {0:?}; over an unreliable transport a message may have been lost for good")]
    Silence(Duration),
    /// Received bytes are wrong.
    #[error("wrong bytes arrived: {0}")]
    Bytes(&'static str),
    /// Received and sent messages differ in number.
    #[error("{what}: {found} instead of {expected}")]
    Count {
        /// Name of the counted quantity.
        what: &'static str,
        /// Number found.
        found: u64,
        /// Number expected.
        expected: u64,
    },
}

impl From<CoreError> for RnicError {
    fn from(error: CoreError) -> Self {
        PeerError::from(error).into()
    }
}

/// Executes one measurement between this process and a new peer. Pins the calling thread.
///
/// # Errors
/// Returns an error if the task is illegal, or if the provider, the peer or a work request fails.
pub fn measure(chosen: &SelectedNic, task: RnicTask, plan: &PairPlan) -> Result<RnicResult, RnicError> {
    measure_from(chosen, task, plan, || Ok(()))
}

/// Like [`measure`], but calls `connected` after connecting and begins to measure when it returns.
fn measure_from(
    chosen: &SelectedNic,
    task: RnicTask,
    plan: &PairPlan,
    connected: impl FnOnce() -> Result<(), RnicError>,
) -> Result<RnicResult, RnicError> {
    task.check()?;
    let survey = Survey::of(&chosen.nic);
    task.check_device(&survey.attr, &survey.port.attr)?;
    pin_thread(plan.client_core)?;
    let order = Target { task, selection: chosen.selection.clone() };
    let peer = plan.start(&order)?;
    let mut end = BenchEndpoint::connect(&chosen.nic, peer.control(), &task.end_plan(Role::Initiator))?;
    if task.needs_order() {
        end.require_order(task.tuning.assumes_order)?;
    }
    connected()?;
    let result = run(&mut end, task, plan, &peer)?;
    handshake::send(peer.control(), &Stop)?;
    let seen: TargetCounts = handshake::receive(peer.control())?;
    account(result, &seen)
}

/// Like [`measure`], but in a separate process. The cost of many queue pairs depends on the location of their memory,
/// and a process that has created and dropped others has fragmented memory.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_apart(chosen: &SelectedNic, task: RnicTask, plan: &PairPlan) -> Result<RnicResult, RnicError> {
    let order = Initiator { task, selection: chosen.selection.clone(), plan: plan.clone() };
    let initiator = plan.launcher.start(&order, plan.client_core, &[])?;
    let result: Result<RnicResult, String> = handshake::receive(initiator.control())?;
    result.map_err(RnicError::Apart)
}

/// Task that executes a complete measurement, whose other end is a third process; see [`measure_apart`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Initiator {
    task: RnicTask,
    selection: Selection,
    plan: PairPlan,
}

impl PeerTask for Initiator {
    const KIND: &'static str = "initiator";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        place.ready()?;
        let Self { task, selection, plan } = self;
        let result =
            selection.open().map_err(RnicError::from).and_then(|chosen| measure(&chosen, task, &plan));
        handshake::send(place.control(), &result.map_err(|error| with_sources(&error)))
    }
}

fn run(
    end: &mut BenchEndpoint,
    task: RnicTask,
    plan: &PairPlan,
    peer: &Peer,
) -> Result<RnicResult, RnicError> {
    let mut watch = Watch::initiator(peer.control());
    let meter = Meter::start(peer)?;
    let is_inline = end.is_inline && !task.operation.returns_data();
    let result = |latency, messages_per_second, samples, sent, lost| {
        let cores = meter.stop()?;
        Ok(RnicResult { task, latency, messages_per_second, samples, sent, lost, is_inline, cores })
    };
    if task.test == RnicTest::Throughput {
        let sent = throughput::measure(end, &task, (plan.warm_up, plan.duration), &mut watch)?;
        let samples = sent.bursts.count * u64::from(sent.messages_each);
        return result(None, sent.per_second(), samples, sent.total, 0);
    }
    let (trips, counted) = latency::measure(end, &task, plan, &mut watch)?;
    result(Some(trips.latency), trips.per_second * task.ways(), trips.count, counted.sent, counted.lost)
}

/// Compares the sent messages with the counts of the target.
fn account(mut result: RnicResult, seen: &TargetCounts) -> Result<RnicResult, RnicError> {
    let RnicTask { operation, test, .. } = result.task;
    if operation == Operation::FetchAdd {
        let found = seen.first_word.wrapping_sub(FILL_WORD);
        count("the target's counter after all additions", found, result.sent)?;
    }
    if operation == Operation::CompareSwap {
        count("the target's word after all swaps", seen.first_word, FILL_WORD)?;
    }
    if !operation.consumes_receive() {
        return Ok(result);
    }
    if !result.task.is_unreliable() {
        count("messages received", seen.received, result.sent)?;
    } else if test == RnicTest::Throughput {
        result.lost = result.sent.saturating_sub(seen.received);
        result.messages_per_second *= seen.received as f64 / result.sent.max(1) as f64;
    }
    Ok(result)
}

fn count(what: &'static str, found: u64, expected: u64) -> Result<(), RnicError> {
    if found == expected { Ok(()) } else { Err(RnicError::Count { what, found, expected }) }
}

/// Role of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Initiator,
    Target,
}

impl RnicTask {
    /// Returns the number of messages in one latency sample.
    pub(crate) fn ways(&self) -> f64 {
        if self.test == RnicTest::PingPong { 2.0 } else { 1.0 }
    }

    /// Returns whether the target detects a message by its last byte.
    fn needs_order(&self) -> bool {
        self.test == RnicTest::PingPong && self.operation == Operation::Write
    }

    /// Returns the number of requests that the queues of a queue pair can hold: the default for a single connection,
    /// the required number for many.
    fn queue_depth(&self) -> u32 {
        let Tuning { window, qps, .. } = self.tuning;
        if qps == 1 { QUEUE_DEPTH } else { (4 * window).clamp(16, QUEUE_DEPTH) }.max(window + 1)
    }

    /// Returns the configuration of one end.
    fn end_plan(&self, role: Role) -> endpoint::EndpointPlan {
        let Tuning { window, .. } = self.tuning;
        let takes_messages = self.test == RnicTest::PingPong || role == Role::Target;
        let depth = self.queue_depth();
        let receives = match self.test {
            RnicTest::Throughput => (3 * window).clamp(16, depth),
            _ => depth.min(64),
        };
        endpoint::EndpointPlan {
            groups: vec![(self.transport, self.tuning.qps)],
            places: memory::Places {
                len_bytes: self.len_bytes,
                incoming: 1,
                outgoing: 1,
                with_grh: self.transport == Transport::Ud,
            },
            send_depth: depth,
            receives: match (self.operation.consumes_receive(), takes_messages) {
                (true, true) => receives,
                (true, false) if self.is_unreliable() => flow::CREDITS_MAX,
                _ => 0,
            },
            receives_min: if takes_messages { window } else { flow::CREDITS_MAX },
            receive_batch: if self.test == RnicTest::Throughput { (receives / 4).clamp(1, 32) } else { 1 },
            places_differ: false,
            shares_receives: self.tuning.shares_receives,
            sleeps: self.tuning.sleeps,
            inlining: self.tuning.inlining,
            with_atomics: self.operation.is_atomic(),
        }
    }
}

/// Requests that a queue holds if there is one queue pair.
const QUEUE_DEPTH: u32 = 1024;

#[cfg(test)]
mod tests;
