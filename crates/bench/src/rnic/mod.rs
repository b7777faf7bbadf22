//! What a provider's verbs can do between two processes: latency, rate and bandwidth of WRITE, READ and SEND.
//!
//! Latencies are round trips: a WRITE or SEND there and one back, found by polling (a WRITE by its last byte); a READ is
//! one operation until its completion. Rates and bandwidths count completed operations of the initiator.

mod bandwidth;
mod endpoint;
mod latency;
mod rate;

use crate::baseline::{BaselinePlan, PeerError, PeerTask};
use crate::measure::{RoundTrips, pin_thread};
use endpoint::RnicEnd;
use farcall_providers::Chosen;
use farcall_verbs::{PostError, Provider, WcStatus};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::unix::net::UnixStream;

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RnicTest {
    /// WRITE there, WRITE back, both found by polling on the last byte.
    WriteLatency,
    /// One READ until its completion.
    ReadLatency,
    /// SEND there, SEND back, both found by polling a completion queue.
    SendLatency,
    /// Chains of inlined SENDs, the last of each signalled.
    SendRate,
    /// Chains of inlined WRITEs, the last of each signalled.
    WriteRate,
    /// WRITEs, several outstanding.
    WriteBandwidth,
    /// READs, several outstanding.
    ReadBandwidth,
}

impl RnicTest {
    /// Whether single operations are timed.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(self, Self::WriteLatency | Self::ReadLatency | Self::SendLatency)
    }

    /// In a few words, for a table.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::WriteLatency => "WRITE ping-pong",
            Self::ReadLatency => "READ",
            Self::SendLatency => "SEND ping-pong",
            Self::SendRate => "SEND rate, chained",
            Self::WriteRate => "WRITE rate, chained",
            Self::WriteBandwidth => "WRITE bandwidth",
            Self::ReadBandwidth => "READ bandwidth",
        }
    }
}

impl fmt::Display for RnicTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RnicTask {
    /// What to measure.
    pub test: RnicTest,
    /// Bytes of each message.
    pub len_bytes: usize,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RnicResult {
    /// What it was.
    pub task: RnicTask,
    /// For latencies: round trips or READs. For rates and bandwidths: chains or batches.
    pub round_trips: RoundTrips,
    /// Messages a second (one way).
    pub messages_per_second: f64,
}

impl RnicResult {
    /// Payload bytes a second (one way).
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.messages_per_second * self.task.len_bytes as f64
    }
}

/// A measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum RnicError {
    /// The other process.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A request failed.
    #[error("a work request failed: {0}")]
    Completion(WcStatus),
    /// The two ends did not come together.
    #[error("the two ends could not exchange their addresses: {0}")]
    Handshake(String),
    /// Other bytes arrived than were sent.
    #[error("wrong bytes arrived: {0}")]
    Bytes(&'static str),
}

/// Measures one thing between this process and a fresh peer. Pins the calling thread.
///
/// # Errors
/// When the provider, the peer or a work request fails.
pub fn measure(chosen: &Chosen, task: RnicTask, plan: &BaselinePlan) -> Result<RnicResult, RnicError> {
    pin_thread(plan.client_core).map_err(PeerError::from)?;
    let mut peer = plan.launcher.start(
        PeerTask::Rnic { task, selection: chosen.selection.clone() },
        plan.server_core,
        &[],
    )?;
    let mut end = RnicEnd::connect(&*chosen.provider, peer.control(), task)?;
    let (round_trips, messages_each) = match task.test {
        RnicTest::WriteLatency => (latency::write(&mut end, plan, &mut peer)?, 2.0),
        RnicTest::SendLatency => (latency::send(&mut end, plan)?, 2.0),
        RnicTest::ReadLatency => (latency::read(&mut end, plan)?, 1.0),
        RnicTest::SendRate => (rate::sends(&mut end, plan)?, rate::CHAIN as f64),
        RnicTest::WriteRate => (rate::writes(&mut end, plan)?, rate::CHAIN as f64),
        RnicTest::WriteBandwidth => (bandwidth::writes(&mut end, plan)?, 1.0),
        RnicTest::ReadBandwidth => (bandwidth::reads(&mut end, plan)?, 1.0),
    };
    Ok(RnicResult { task, round_trips, messages_per_second: round_trips.per_second * messages_each })
}

/// The peer's part: the passive end, until it is killed.
pub(crate) fn serve(
    provider: &dyn Provider,
    task: RnicTask,
    control: &UnixStream,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), RnicError> {
    ready()?;
    let mut end = RnicEnd::connect(provider, control, task)?;
    match task.test {
        RnicTest::WriteLatency => latency::answer_writes(&mut end),
        RnicTest::SendLatency => latency::answer_sends(&mut end),
        RnicTest::SendRate => rate::absorb_sends(&mut end),
        // One-sided: the owner of the memory has nothing to do, and sleeps until the other end is gone.
        _ => endpoint::wait_for_the_end(control),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::tests_launcher;
    use crate::measure::Cores;
    use farcall_providers::Selection;
    use std::time::Duration;

    #[test]
    fn every_test_runs_between_two_processes_at_several_sizes() {
        let (server_core, client_core) = Cores::allowed().unwrap().server_and_client();
        let plan = BaselinePlan {
            launcher: tests_launcher(),
            server_core,
            client_core,
            warm_up: Duration::from_millis(1),
            duration: Duration::from_millis(5),
        };
        use RnicTest::{
            ReadBandwidth, ReadLatency, SendLatency, SendRate, WriteBandwidth, WriteLatency, WriteRate,
        };
        let chosen = Selection::softnic().choose().unwrap();
        let cases = [
            (WriteLatency, 1),
            (WriteLatency, 64),
            (WriteLatency, 65_536),
            (ReadLatency, 64),
            (ReadLatency, 4096),
            (SendLatency, 64),
            (SendLatency, 4096),
            (SendRate, 64),
            (WriteRate, 64),
            (WriteBandwidth, 1 << 20),
            (ReadBandwidth, 1 << 20),
        ];
        for (test, len_bytes) in cases {
            let result = measure(&chosen, RnicTask { test, len_bytes }, &plan)
                .unwrap_or_else(|error| panic!("{test} of {len_bytes} bytes: {error}"));
            assert!(result.messages_per_second > 0.0 && result.bytes_per_second() > 0.0, "{result:?}");
        }
    }
}
