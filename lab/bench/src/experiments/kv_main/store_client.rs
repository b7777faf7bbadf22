//! Client of a measurement of the store: connects, runs its load and reports its results.

use super::super::clients::Client;
use super::super::reach::Reach;
use super::super::ready::Ready;
use super::figures::{Figure, load_plan};
use super::{ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan};
use crate::load::{Connection, Ledger, Load, LoadPlan, LoadResult};
use crate::measure::{Share, cpu_time};
use crate::workload::{Distribution, OpStream, StreamConfig, Workload};
use farcall_kv::bypass::ReadCounters;
use farcall_link::BatchSizing;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operations drawn for each connection; a run repeats them cyclically.
const SCRIPT_LEN: usize = 1 << 16;

/// Task of a client, in this process or in a process of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoreClient {
    ready: Ready,
    front_end: FrontEnd,
    workload: Workload,
    distribution: Distribution,
    batch: Option<BatchSizing>,
    reach: Reach,
    load: LoadPlan,
    connections: u32,
    seed: u64,
    /// Number of connections of the clients before this one, and of all clients.
    before: u32,
    streams: u32,
}

/// Results of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoreRun {
    pub(super) load: LoadResult,
    /// Number of operations, warm-up included.
    pub(super) all_ops: u64,
    /// Processor time of a client process during all operations.
    pub(super) cpu: Duration,
    pub(super) verbs: u64,
    pub(super) empty_reads: u64,
    /// R and F at the end, of each connection that fetches results.
    pub(super) tunings: Vec<(u32, u32)>,
    /// Cost of GETs, of each connection whose GETs are READs.
    pub(super) gets: Vec<GetCosts>,
}

/// Cost of GETs that are READs; see [`ReadCounters`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct GetCosts {
    pub(super) gets: u64,
    pub(super) reads: u64,
    pub(super) torn: u64,
    pub(super) moved: u64,
    pub(super) gets_by_call: u64,
}

impl From<ReadCounters> for GetCosts {
    fn from(counters: ReadCounters) -> Self {
        let ReadCounters { gets, reads, torn, moved, gets_by_call, .. } = counters;
        Self { gets, reads, torn, moved, gets_by_call }
    }
}

impl StoreClient {
    pub(super) fn new(
        plan: &KvMainPlan,
        figure: &Figure,
        ready: &Ready,
        repetition: u32,
        number: u32,
    ) -> Self {
        let &Figure { front_end, workload, distribution, window, batch, .. } = figure;
        let (before, streams) = (number * plan.connections, plan.clients * plan.connections);
        let share = plan.rate.map(|per_second| Share { per_second, before, connections: streams });
        Self {
            ready: ready.clone(),
            front_end,
            workload,
            distribution,
            batch,
            reach: plan.reach.clone(),
            load: LoadPlan { share, ..load_plan(plan, window) },
            connections: plan.connections,
            // The seed depends on the repetition but not on the front end, so all front ends of a repetition execute
            // the same operations.
            seed: plan.env.seed.wrapping_add(u64::from(repetition)),
            before,
            streams,
        }
    }

    /// Opens new connections, each with its own sequence of operations.
    pub(super) fn connect(&self) -> Result<Vec<Connection<FrontEndTarget>>, ExperimentError> {
        let &Self { front_end, batch, .. } = self;
        let connect = |stream: u32| {
            let window = self.load.window;
            let target = match batch {
                Some(batch) => front_end.connect_in_batches(&self.reach, &self.ready, window, batch),
                None => front_end.connect(&self.reach, &self.ready, window),
            };
            let target = target.map_err(|error| front_end.failed(error))?;
            let mut ops = OpStream::new(StreamConfig {
                workload: self.workload,
                distribution: self.distribution,
                records: self.load.loaded,
                seed: self.seed,
                stream: u64::from(self.before + stream),
                streams: u64::from(self.streams),
            });
            Ok(Connection::new(target, ops.script(SCRIPT_LEN)))
        };
        (0..self.connections).map(connect).collect()
    }

    /// Connects, runs the load and disconnects. `on_recording` is called as by [`Load::run`].
    pub(super) fn run_here(
        &self,
        ledger: &mut Ledger,
        on_recording: impl FnMut(bool),
    ) -> Result<StoreRun, ExperimentError> {
        self.run_over(self.connect()?, ledger, on_recording)
    }

    fn run_over(
        &self,
        mut connections: Vec<Connection<FrontEndTarget>>,
        ledger: &mut Ledger,
        on_recording: impl FnMut(bool),
    ) -> Result<StoreRun, ExperimentError> {
        let load = Load::new(self.load);
        let completed = load.completed();
        let load =
            load.run(&mut connections, ledger, on_recording).map_err(|error| self.front_end.failed(error))?;
        let targets = || connections.iter().map(Connection::target);
        Ok(StoreRun {
            load,
            all_ops: completed.load(Ordering::Relaxed),
            cpu: Duration::ZERO,
            verbs: targets().map(|target| target.traffic().verbs).sum(),
            empty_reads: targets().map(|target| target.traffic().empty_reads).sum(),
            tunings: targets().filter_map(FrontEndTarget::tuning).collect(),
            gets: targets().filter_map(FrontEndTarget::gets).map(GetCosts::from).collect(),
        })
    }
}

impl Client for StoreClient {
    const KIND: &'static str = "store-client";
    type Outcome = StoreRun;

    fn run(
        &self,
        mut connected: impl FnMut() -> Result<(), ExperimentError>,
    ) -> Result<StoreRun, ExperimentError> {
        let connections = self.connect()?;
        connected()?;
        let before = cpu_time(std::process::id())?;
        let mut ledger = Ledger::shared(self.load.loaded);
        let run = self.run_over(connections, &mut ledger, |_| {})?;
        Ok(StoreRun { cpu: cpu_time(std::process::id())?.saturating_sub(before), ..run })
    }
}
