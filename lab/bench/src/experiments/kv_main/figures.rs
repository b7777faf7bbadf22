//! One line of the main table, and its samples.

use super::super::clients;
use super::store_client::{GetCosts, StoreRun};
use super::{ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan, ServerUnderTest, StoreClient};
use crate::load::{Connection, LoadPlan, LoadResult};
use crate::measure::{ProcessError, cpu_time};
use crate::workload::{Distribution, Workload};
use farcall_link::BatchSizing;
use std::fmt;
use std::time::Duration;

/// Configuration and samples of one line of the table.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) front_end: FrontEnd,
    pub(super) workload: Workload,
    pub(super) distribution: Distribution,
    pub(super) window: u32,
    /// Batch size, or `None` if operations are not batched.
    pub(super) batch: Option<BatchSizing>,
    pub(super) samples: Vec<Sample>,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, YCSB-{} {}, window {}",
            self.front_end, self.workload, self.distribution, self.window
        )?;
        self.batch.map_or(Ok(()), |batch| write!(f, ", {batch}"))
    }
}

impl Figure {
    /// Returns all lines that `plan` specifies.
    pub(super) fn all_of(plan: &KvMainPlan) -> Vec<Self> {
        let mut figures = Vec::new();
        for &(workload, distribution) in &plan.workloads {
            for &window in &plan.windows {
                for &front_end in &plan.front_ends {
                    let fills = |batch: &&BatchSizing| front_end.batches() && batch.least() <= window;
                    let batches = plan.batches.iter().filter(fills).copied().map(Some);
                    figures.extend([None].into_iter().chain(batches).map(|batch| Self {
                        workload,
                        distribution,
                        batch,
                        ..Self::of_reads(front_end, window)
                    }));
                }
            }
        }
        figures
    }

    /// Returns a line of reads without batches.
    pub(super) const fn of_reads(front_end: FrontEnd, window: u32) -> Self {
        let (workload, distribution) = (Workload::C, Distribution::Zipfian);
        Self { front_end, workload, distribution, window, batch: None, samples: Vec::new() }
    }
}

/// Results of one run.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) load: LoadResult,
    pub(crate) server_cpu: Duration,
    pub(super) client_cpu: Duration,
    pub(crate) verbs_per_op: f64,
    pub(super) empty_reads_per_op: f64,
    /// R and F at the end, of each connection that fetches results.
    pub(super) tunings: Vec<(u32, u32)>,
    /// Cost of GETs, of each connection whose GETs are READs.
    pub(super) gets: Vec<GetCosts>,
}

impl Sample {
    /// Connects, runs the load and disconnects. Adds detected faults to `problems`.
    pub(super) fn take(
        plan: &KvMainPlan,
        figure: &Figure,
        tested: &mut ServerUnderTest,
        repetition: u32,
        problems: &mut Vec<String>,
    ) -> Result<Self, ExperimentError> {
        let front_end = tested.front_end;
        let client = |number| StoreClient::new(plan, figure, tested.server.ready(), repetition, number);
        let sample = if plan.clients == 1 {
            let (client, server) = (client(0), &tested.server);
            let mut marks = Vec::with_capacity(2);
            let run =
                client.run_here(&mut tested.ledger, |_| marks.push((server.cpu_time(), own_cpu_time())))?;
            let marks: [_; 2] = marks.try_into().map_err(|_| front_end.failed("the run took no time"))?;
            let [(server_start, client_start), (server_end, client_end)] = marks;
            let server_cpu = server_end?.saturating_sub(server_start?);
            Self::of(vec![run], server_cpu, client_end?.saturating_sub(client_start?))
        } else {
            let clients: Vec<_> = (0..plan.clients).map(client).collect();
            let server = &tested.server;
            let (runs, [before, after]) = clients::run_all(&plan.env, &clients, || server.cpu_time())?;
            // The processor times cover the complete run; this is the share of the recorded period.
            let all_ops: u64 = runs.iter().map(|run| run.all_ops).sum();
            let share = runs.iter().map(|run| run.load.ops).sum::<u64>() as f64 / all_ops.max(1) as f64;
            let client_cpu: Duration = runs.iter().map(|run| run.cpu).sum();
            Self::of(runs, after.saturating_sub(before).mul_f64(share), client_cpu.mul_f64(share))
        };
        let found = sample.load.problems();
        problems.extend(found.into_iter().map(|problem| format!("{figure}: {problem}")));
        Ok(sample)
    }

    fn of(runs: Vec<StoreRun>, server_cpu: Duration, client_cpu: Duration) -> Self {
        let all_ops = runs.iter().map(|run| run.all_ops).sum::<u64>().max(1) as f64;
        let sum = |count: fn(&StoreRun) -> u64| runs.iter().map(count).sum::<u64>() as f64;
        let (verbs, empty_reads) = (sum(|run| run.verbs), sum(|run| run.empty_reads));
        let tunings = runs.iter().flat_map(|run| run.tunings.iter().copied()).collect();
        let gets = runs.iter().flat_map(|run| run.gets.iter().copied()).collect();
        let mut loads = runs.into_iter().map(|run| run.load);
        let mut load = loads.next().unwrap_or_default();
        loads.for_each(|more| load.add(&more));
        // The summary is sufficient from here on.
        load.latencies = Vec::new();
        Self {
            load,
            server_cpu,
            client_cpu,
            verbs_per_op: verbs / all_ops,
            empty_reads_per_op: empty_reads / all_ops,
            tunings,
            gets,
        }
    }

    /// Returns the counted quantity per GET; NaN if no GETs are READs.
    pub(super) fn per_get(&self, count: impl Fn(&GetCosts) -> u64) -> f64 {
        let sum = |count: &dyn Fn(&GetCosts) -> u64| self.gets.iter().map(count).sum::<u64>() as f64;
        sum(&count) / sum(&|counters| counters.gets)
    }

    /// Returns microseconds of a process's CPU time per operation.
    pub(crate) fn us_per_op(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.load.ops.max(1) as f64
    }
}

/// Returns the plan of a closed-loop run at `window` by this process alone.
pub(super) fn load_plan(plan: &KvMainPlan, window: u32) -> LoadPlan {
    LoadPlan {
        window,
        warm_up: plan.env.warm_up,
        duration: plan.env.duration,
        shape: plan.shape,
        loaded: plan.records,
        share: None,
    }
}

/// Opens new connections of this process, each with its own sequence of operations.
pub(super) fn connect(
    plan: &KvMainPlan,
    figure: &Figure,
    tested: &ServerUnderTest,
    repetition: u32,
) -> Result<Vec<Connection<FrontEndTarget>>, ExperimentError> {
    StoreClient::new(plan, figure, tested.server.ready(), repetition, 0).connect()
}

fn own_cpu_time() -> Result<Duration, ProcessError> {
    cpu_time(std::process::id())
}
