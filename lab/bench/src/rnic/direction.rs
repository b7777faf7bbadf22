//! Direction of operations: in-bound and out-bound operations of the serving end, with one client process or several.
//!
//! An operation is in-bound at the end whose memory it accesses. A passive server is therefore measured by clients
//! that issue operations, and a server that issues operations by passive clients (RF-RPC, section 2.2; HERD, figures 3
//! and 4).

use super::endpoint::BenchEndpoint;
use super::handshake::{self, Stop, TargetCounts};
use super::target;
use super::task::{RnicTask, RnicTest};
use super::waiting::Watch;
use super::{Illegal, RnicError, RnicResult, Role, Survey, account, measure_from, throughput};
use crate::experiments::clients::Client;
use crate::experiments::{ExperimentEnv, ExperimentError, clients};
use crate::peer::{BothEnds, Meter, PairPlan, PeerError, PeerPlace, PeerTask};
use farcall::select::{SelectedNic, Selection};
use farcall_verbs::with_sources;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Direction of operations as seen from the serving end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Clients issue.
    InBound,
    /// The serving end issues.
    OutBound,
}

names! { Direction { InBound => "in-bound", OutBound => "out-bound" } }

/// A rate of operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Operations a second, summed over all clients.
    pub per_second: f64,
    /// Processor time of all processes.
    pub cores: BothEnds,
}

/// Measures a throughput between `clients` processes on this host and one process per client at the serving end.
///
/// # Errors
/// Returns an error if the task is not a throughput, or those of [`measure`](super::measure).
pub fn rate(
    chosen: &SelectedNic,
    task: RnicTask,
    direction: Direction,
    clients: u32,
    env: &ExperimentEnv,
) -> Result<Rate, RnicError> {
    task.check()?;
    if task.test != RnicTest::Throughput {
        let what = "only rates are measured in a direction".to_owned();
        return Err(Illegal { what, nearest: "a throughput".to_owned() }.into());
    }
    let survey = Survey::of(&chosen.nic);
    task.check_device(&survey.attr, &survey.port.attr)?;
    let selection = chosen.selection.clone();
    let client_of = |number| OneOfMany {
        task,
        direction,
        selection: selection.clone(),
        plan: PairPlan { client_core: env.core_of_client(number), ..env.pair_plan() },
    };
    let results = if clients == 1 {
        vec![client_of(0).measure(|| Ok(()))?]
    } else {
        let clients: Vec<_> = (0..clients).map(client_of).collect();
        let ran = clients::run_all(env, &clients, || Ok(()));
        ran.map_err(|error| RnicError::Apart(with_sources(&*error)))?.0
    };
    let sum = |figure: fn(&RnicResult) -> f64| results.iter().map(figure).sum();
    let cores = BothEnds { client: sum(|it| it.cores.client), server: sum(|it| it.cores.server) };
    Ok(Rate { per_second: sum(|it| it.messages_per_second), cores })
}

/// One of several clients, run in this process or in a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OneOfMany {
    task: RnicTask,
    direction: Direction,
    selection: Selection,
    plan: PairPlan,
}

impl Client for OneOfMany {
    const KIND: &'static str = "rnic-client";
    type Outcome = RnicResult;

    fn run(
        &self,
        mut connected: impl FnMut() -> Result<(), ExperimentError>,
    ) -> Result<RnicResult, ExperimentError> {
        Ok(self.measure(|| connected().map_err(|error| RnicError::Apart(with_sources(&*error))))?)
    }
}

impl OneOfMany {
    /// Connects, calls `connected`, then measures.
    fn measure(&self, connected: impl FnOnce() -> Result<(), RnicError>) -> Result<RnicResult, RnicError> {
        let chosen = self.selection.open()?;
        match self.direction {
            Direction::InBound => measure_from(&chosen, self.task, &self.plan, connected),
            Direction::OutBound => self.measure_issuer(&chosen, connected),
        }
    }

    /// Measures an issuing peer, with this process as the passive target.
    fn measure_issuer(
        &self,
        chosen: &SelectedNic,
        connected: impl FnOnce() -> Result<(), RnicError>,
    ) -> Result<RnicResult, RnicError> {
        let Self { task, plan, .. } = self;
        crate::measure::pin_thread(plan.client_core)?;
        let issuer = Issuer {
            task: *task,
            selection: self.selection.clone(),
            warm_up: plan.warm_up,
            duration: plan.duration,
        };
        let peer = plan.start(&issuer)?;
        let control = peer.control();
        let mut end = BenchEndpoint::connect(&chosen.nic, control, &task.end_plan(Role::Target))?;
        connected()?;
        handshake::send(control, &Begin)?;
        let meter = Meter::start(&peer)?;
        target::take_part_until_called(&mut end, task, control, &mut Watch::target(control))?;
        let cores = meter.stop()?;
        let issued: Result<IssueCounts, String> =
            handshake::receive(control).map_err(|_| PeerError::Ended)?;
        let IssueCounts { messages_per_second, samples, sent, is_inline } =
            issued.map_err(RnicError::Apart)?;
        let seen =
            TargetCounts { received: end.receives.total, first_word: end.memory.first_word_incoming() };
        let (task, latency, lost) = (*task, None, 0);
        let result = RnicResult { task, latency, messages_per_second, samples, sent, lost, is_inline, cores };
        handshake::send(control, &Stop)?;
        account(result, &seen)
    }
}

/// Task of the serving end if it issues the operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Issuer {
    task: RnicTask,
    selection: Selection,
    warm_up: Duration,
    duration: Duration,
}

/// Sent when all targets are connected.
#[derive(Debug, Serialize, Deserialize)]
struct Begin;

/// Results that an issuer reports.
#[derive(Debug, Serialize, Deserialize)]
struct IssueCounts {
    messages_per_second: f64,
    samples: u64,
    sent: u64,
    is_inline: bool,
}

impl PeerTask for Issuer {
    const KIND: &'static str = "issuer";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        self.issue(&place).map_err(|error| PeerError::Part(with_sources(&error)))
    }
}

impl Issuer {
    fn issue(&self, place: &PeerPlace) -> Result<(), RnicError> {
        // The task may have been sent by another host, so it is checked again.
        self.task.check()?;
        let chosen = place.nic(&self.selection).open()?;
        place.ready()?;
        let control = place.control();
        let mut end = BenchEndpoint::connect(&chosen.nic, control, &self.task.end_plan(Role::Initiator))?;
        let Begin = handshake::receive(control)?;
        let issued = self.throughput(&mut end, &mut Watch::initiator(control));
        handshake::send(control, &issued.map_err(|error| with_sources(&error)))?;
        // The queue pairs are retained until the target has received all messages.
        let _ = handshake::receive::<Stop>(control);
        Ok(())
    }

    fn throughput(&self, end: &mut BenchEndpoint, watch: &mut Watch<'_>) -> Result<IssueCounts, RnicError> {
        let sent = throughput::measure(end, &self.task, (self.warm_up, self.duration), watch)?;
        Ok(IssueCounts {
            messages_per_second: sent.per_second(),
            samples: sent.bursts.count * u64::from(sent.messages_each),
            sent: sent.total,
            is_inline: end.is_inline && !self.task.operation.returns_data(),
        })
    }
}
