//! Client of a measurement of calls: connects, calls and reports its counts.

use super::callee::{Request, WRONG_ECHO};
use super::requesters::{CallTransport, Connections, Mailboxes, RequesterPool, Topology};
use super::{CallTask, PATIENCE, SharedContext};
use crate::experiments::ExperimentError;
use crate::experiments::clients::Client as ClientProcess;
use crate::experiments::reach::Reach;
use crate::load::{Traffic, in_batches, presets, settle};
use crate::measure::{LatencyRecorder, Schedule, Share, cpu_time, record_ping_pong};
use farcall::rpc::tune::Decision;
use farcall::rpc::{CallId, Client, ClientOptions, ConnectError, Dispatcher, ServerThread};
use farcall_link::{BatchConfig, BatchSizing, Geometry, Nic, Plan, ResponsePath as ResponseAxis};
use farcall_rpc::{AnyCaller, ClientOf, Path, ResponsePath, StaticClient};
use farcall_verbs::{Clock, MonotonicClock, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// More than the maximum number of outstanding calls of a connection.
const CALLS_MAX: usize = 1 << 10;

/// Task of a client, in this process or in a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallClient {
    task: CallTask,
    reach: Reach,
    address: String,
    /// Index of the client.
    number: u32,
    /// Seed for the choice of responders.
    seed: u64,
    warm_up: Duration,
    duration: Duration,
}

/// Counts of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallRun {
    /// Number of calls, warm-up included.
    pub(super) calls: u64,
    /// Number of timed units in the recorded period: calls, or rounds of calls.
    pub(super) ended: u64,
    pub(super) elapsed_ns: u64,
    pub(super) latencies: LatencyRecorder,
    pub(super) verbs: u64,
    pub(super) empty_reads: u64,
    /// Processor time of the client's process during all calls.
    pub(super) cpu: Duration,
    pub(super) choice: Option<Choice>,
    pub(super) tunings: Vec<(u32, u32)>,
    pub(super) unsent: u64,
    pub(super) empty_share: Option<f64>,
}

/// Choice of the library with its reason: the part of a [`Decision`] that can be sent to other processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) preset: String,
    pub(super) because: String,
}

impl From<Decision> for Choice {
    fn from(decision: Decision) -> Self {
        Self { preset: decision.preset().to_owned(), because: decision.because }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.preset, self.because)
    }
}

/// Called when all connections are established, before the first call.
type Connected<'a> = &'a mut dyn FnMut() -> Result<(), ExperimentError>;

impl CallClient {
    pub(super) fn new(
        task: &CallTask,
        context: &SharedContext<'_>,
        number: u32,
    ) -> Result<Self, ExperimentError> {
        let address = context.server.ready().rpc.clone();
        Ok(Self {
            task: *task,
            reach: Reach { nic: context.nic.clone(), profile: context.profile.cloned() },
            address: address.ok_or("the server process did not say where RPC clients connect")?,
            number,
            seed: context.env.seed.wrapping_add(number.into()),
            warm_up: context.env.warm_up,
            duration: context.env.duration,
        })
    }

    /// Connects, calls and disconnects.
    pub(super) fn run(
        &self,
        mut connected: impl FnMut() -> Result<(), ExperimentError>,
    ) -> Result<CallRun, ExperimentError> {
        let mut options = self.options();
        let (preset, decision) = settle(self.task.preset, &mut options, &self.reach.nic, &self.address)?;
        let run = match self.task.batch {
            None if matches!(self.task.topology, Topology::Dispatcher { .. }) => {
                self.run_dispatched(preset, &options, &mut connected)?
            }
            Some(batch) => self.run_batched(preset, options, batch, &mut connected)?,
            None => {
                let run = run_of(preset)
                    .ok_or_else(|| format!("{preset} is measured by nothing; this is a defect"))?;
                run(self, options, &mut connected)?
            }
        };
        Ok(CallRun { choice: decision.map(Choice::from), ..run })
    }

    /// Measures batched calls. Each needs one dynamic dispatch, which is small compared with the copies into and out
    /// of a batch.
    fn run_batched(
        &self,
        preset: &str,
        options: ClientOptions,
        batch: BatchSizing,
        connected: Connected<'_>,
    ) -> Result<CallRun, ExperimentError> {
        let options = in_batches(options, preset, batch).ok_or_else(|| format!("no preset {preset}"))?;
        let response = options.config.plan.response;
        let fetches = matches!(response, ResponseAxis::Fetch | ResponseAxis::FetchThenReply);
        let connect = |nic: &Nic, address: &str, options| Client::connect(nic, address, options);
        self.run_by(options, fetches, connect, connected)
    }

    /// Measures requesters of a dispatcher, whose thread shares the processor of this one.
    fn run_dispatched(
        &self,
        preset: &str,
        options: &ClientOptions,
        connected: Connected<'_>,
    ) -> Result<CallRun, ExperimentError> {
        let Topology::Dispatcher { responders, connections } = self.task.topology else {
            return Err("this task has no dispatcher; this is a defect".into());
        };
        let plan = Plan::named(preset).ok_or_else(|| format!("no preset {preset}"))?;
        let mut options = options.clone();
        let Plan { geometry, memory, waiting, .. } = options.config.plan;
        let window = self.task.connections.next_power_of_two().clamp(16, Geometry::WINDOW_MAX.into());
        let geometry = Geometry { window: window as u16, ..geometry };
        options = options.clone().config(options.config.plan(Plan { geometry, memory, waiting, ..plan }));
        let each = usize::from(connections.max(1));
        let threads = (0..responders).flat_map(|thread| std::iter::repeat_n(thread, each));
        let servers: Vec<ServerThread> =
            threads.map(|thread| ServerThread { address: self.address.clone(), thread }).collect();
        let start = |nic: &Nic| Dispatcher::start(nic, &servers, options.clone());
        let dispatcher = self.reach.nic.connect(start, |_| false)?;
        connected()?;
        let cpu_before = cpu_time(std::process::id())?;
        let run = self.run_requesters(Mailboxes::new(dispatcher, self.task.connections, connections)?)?;
        Ok(CallRun { cpu: cpu_time(std::process::id())?.saturating_sub(cpu_before), ..run })
    }

    /// Measures requesters, each of which repeatedly calls a responder chosen at random.
    fn run_requesters(&self, transport: impl CallTransport) -> Result<CallRun, ExperimentError> {
        let mut pool = RequesterPool::new(transport, &self.task, self.seed);
        let (latencies, elapsed_ns) = record_ping_pong(self.warm_up, self.duration, |_| pool.round())?;
        let (calls, empty_share) = (pool.ended(), pool.empty_share());
        Ok(CallRun { calls, ended: latencies.count(), empty_share, ..CallRun::of(latencies, elapsed_ns) })
    }

    /// Returns the options of the client's connections.
    fn options(&self) -> ClientOptions {
        let mut options = self.reach.options(self.task.window, PATIENCE);
        if let Some(memory) = self.task.memory {
            options.config.plan.memory = memory;
        }
        let geometry = &mut options.config.plan.geometry;
        let [request_bytes, response_bytes] = self.task.slots_bytes();
        geometry.request_slot_bytes = request_bytes.unwrap_or(geometry.request_slot_bytes);
        geometry.response_slot_bytes = response_bytes.unwrap_or(geometry.response_slot_bytes);
        options
    }

    fn run_by<C: AnyCaller + ?Sized>(
        &self,
        options: ClientOptions,
        fetches: bool,
        connect: impl Fn(&Nic, &str, ClientOptions) -> Result<ClientOf<C>, ConnectError>,
        connected: Connected<'_>,
    ) -> Result<CallRun, ExperimentError> {
        let task = &self.task;
        let responders = u32::from(task.topology.responders());
        let connect = |number: u32| {
            let (nic, options) = (&self.reach.nic, options.clone().thread((number % responders) as u16));
            nic.connect(|nic| connect(nic, &self.address, options.clone()), |_| false)
        };
        let _silent = (0..task.silent_connections).map(connect).collect::<Result<Vec<_>, _>>()?;
        let each = if matches!(task.topology, Topology::PrivateToMany { .. }) { responders } else { 1 };
        let mut clients = (0..task.connections * each).map(connect).collect::<Result<Vec<_>, _>>()?;
        let traffic_of = |clients: &[ClientOf<C>]| Traffic::of_all(clients.iter().map(ClientOf::counters));
        connected()?;
        let traffic_before = traffic_of(&clients);
        let own_cpu = || cpu_time(std::process::id());
        let cpu_before = own_cpu()?;
        let run = match task.rate {
            Some(per_second) => {
                let connections = task.clients * task.connections;
                let share = Share { per_second, before: self.number * task.connections, connections };
                self.run_to_schedule(&mut clients, share)?
            }
            None if let Topology::PrivateToMany { responders } = task.topology => {
                self.run_requesters(Connections { clients: &mut clients, responders })?
            }
            None => self.run_rounds(&mut clients)?,
        };
        let cpu = own_cpu()?.saturating_sub(cpu_before);
        let traffic = traffic_of(&clients).since(traffic_before);
        let tunings = clients.iter().filter(|_| fetches).map(ClientOf::tuning).collect();
        Ok(CallRun { verbs: traffic.verbs, empty_reads: traffic.empty_reads, cpu, tunings, ..run })
    }

    /// Measures rounds of calls. A round begins when all calls of the previous one have completed.
    fn run_rounds<C: AnyCaller + ?Sized>(
        &self,
        clients: &mut [ClientOf<C>],
    ) -> Result<CallRun, ExperimentError> {
        let task = &self.task;
        let mut calls = 0;
        let mut request = Request::new(task.callee);
        let mut reply = Vec::with_capacity(task.callee.reply_len_bytes() as usize);
        let (latencies, elapsed_ns) = record_ping_pong(self.warm_up, self.duration, |number| {
            calls += u64::from(task.at_once());
            match &mut *clients {
                [client] if task.window == 1 => call_once(client, &mut request, task, number, &mut reply),
                clients => call_windows(clients, &mut request, task, number),
            }
        })?;
        Ok(CallRun { calls, ended: latencies.count(), ..CallRun::of(latencies, elapsed_ns) })
    }

    /// Begins calls at their scheduled times, or as soon afterwards as the window has space. Latencies count from the
    /// scheduled times.
    fn run_to_schedule<C: AnyCaller + ?Sized>(
        &self,
        clients: &mut [ClientOf<C>],
        share: Share,
    ) -> Result<CallRun, ExperimentError> {
        let CallTask { callee, window, .. } = self.task;
        let (clock, mut request) = (MonotonicClock::new(), Request::new(callee));
        let start = clock.now();
        let record_from = start + self.warm_up;
        let end = record_from + self.duration;
        let mut lines: Vec<ScheduledCalls> = (0..)
            .take(clients.len())
            .map(|number| ScheduledCalls::new(share.schedule(number, start), &self.task))
            .collect();
        let mut run = CallRun::of(LatencyRecorder::default(), self.duration.as_nanos() as u64);
        loop {
            let now = clock.now();
            let is_over = now >= end;
            for (client, line) in clients.iter_mut().zip(&mut lines) {
                while !is_over
                    && line.under_way < window
                    && let Some(intended) = line.schedule.due(now)
                {
                    *line.begun(client.submit(callee.method(), request.numbered(intended.0))?) = intended;
                    line.under_way += 1;
                    run.calls += 1;
                }
                // Batches are sent by their own rules.
                if self.task.batch.is_none() || is_over {
                    client.flush();
                }
                client.progress();
                while let Some(completion) = client.next_completion() {
                    let intended = *line.begun(completion.call);
                    if !callee.is_right(intended.0, completion.result?) {
                        return Err(WRONG_ECHO.into());
                    }
                    line.under_way -= 1;
                    run.record(intended, record_from..end, clock.now());
                }
            }
            if is_over && lines.iter().all(|line| line.under_way == 0) {
                break;
            }
        }
        // Scheduled calls that could not begin have waited at least until now.
        let now = clock.now();
        for line in &mut lines {
            while let Some(intended) = line.schedule.due(end) {
                if (record_from..end).contains(&intended) {
                    run.latencies.record_ns(now.0 - intended.0);
                    run.unsent += 1;
                }
            }
        }
        Ok(run)
    }
}

/// State of one connection under a schedule.
struct ScheduledCalls {
    schedule: Schedule,
    under_way: u32,
    /// Scheduled times by call number.
    times: Box<[Nanos]>,
}

impl ScheduledCalls {
    fn new(schedule: Schedule, task: &CallTask) -> Self {
        // A batch uses as many numbers as it can hold calls.
        let each = if task.batch.is_some() { usize::from(BatchConfig::CALLS_MAX) } else { 1 };
        Self { schedule, under_way: 0, times: vec![Nanos(0); CALLS_MAX * each].into_boxed_slice() }
    }

    #[inline]
    fn begun(&mut self, call: CallId) -> &mut Nanos {
        let count = self.times.len();
        &mut self.times[call.0 as usize % count]
    }
}

impl CallRun {
    pub(super) fn of(latencies: LatencyRecorder, elapsed_ns: u64) -> Self {
        Self {
            calls: 0,
            ended: 0,
            elapsed_ns,
            latencies,
            verbs: 0,
            empty_reads: 0,
            cpu: Duration::ZERO,
            choice: None,
            tunings: Vec::new(),
            unsent: 0,
            empty_share: None,
        }
    }

    #[inline]
    fn record(&mut self, intended: Nanos, stretch: Range<Nanos>, now: Nanos) {
        self.ended += u64::from(stretch.contains(&now));
        if intended >= stretch.start {
            self.latencies.record_ns(now.0.saturating_sub(intended.0));
        }
    }
}

impl ClientProcess for CallClient {
    const KIND: &'static str = "call-client";
    type Outcome = CallRun;

    fn run(
        &self,
        connected: impl FnMut() -> Result<(), ExperimentError>,
    ) -> Result<CallRun, ExperimentError> {
        Self::run(self, connected)
    }
}

type Run = fn(&CallClient, ClientOptions, Connected<'_>) -> Result<CallRun, ExperimentError>;

macro_rules! run_of {
    (($name_of:expr) $($preset:ident = $name:literal: $paths:ty,)+) => {
        match $name_of {
            $($name => Some(run::<$paths>),)+
            _ => None,
        }
    };
}

/// Returns the function that measures a preset, whose paths are fixed at compile time.
fn run_of(preset: &str) -> Option<Run> {
    presets!(run_of(preset))
}

fn run<P: Path>(
    client: &CallClient,
    options: ClientOptions,
    connected: Connected<'_>,
) -> Result<CallRun, ExperimentError> {
    let connect = |nic: &Nic, address: &str, options| StaticClient::<P>::connect(nic, address, options);
    client.run_by(options, P::Response::FETCHES, connect, connected)
}

#[inline]
fn call_once<C: AnyCaller + ?Sized>(
    client: &mut ClientOf<C>,
    request: &mut Request,
    task: &CallTask,
    number: u64,
    reply: &mut Vec<u8>,
) -> Result<(), ExperimentError> {
    reply.clear();
    client.call(task.callee.method(), request.numbered(number), reply)?;
    if task.callee.is_right(number, reply) { Ok(()) } else { Err(WRONG_ECHO.into()) }
}

/// Begins a window of calls on each connection and waits for all of them.
#[inline]
fn call_windows<C: AnyCaller + ?Sized>(
    clients: &mut [ClientOf<C>],
    request: &mut Request,
    task: &CallTask,
    number: u64,
) -> Result<(), ExperimentError> {
    let CallTask { callee, window, .. } = *task;
    let request = request.numbered(number);
    for client in &mut *clients {
        for _ in 0..window {
            client.submit(callee.method(), request)?;
        }
        client.flush();
    }
    let mut left = window as usize * clients.len();
    while left > 0 {
        for client in &mut *clients {
            client.progress();
            while let Some(completion) = client.next_completion() {
                if !callee.is_right(number, completion.result?) {
                    return Err(WRONG_ECHO.into());
                }
                left -= 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_measured() {
        for preset in farcall_link::PRESETS {
            assert!(run_of(preset.name).is_some(), "{} is measured by nothing", preset.name);
        }
    }
}
