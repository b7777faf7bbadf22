//! One line of the main table, and the samples taken for it.

use super::{ExperimentError, FrontEnd, FrontEndTarget, KvMainPlan, Post};
use crate::load::{Connection, Load, LoadPlan, LoadResult};
use crate::measure::cpu_time;
use crate::workload::{Distribution, OpStream, StreamConfig, Workload};
use farcall_kv::bypass::ReadCounters;
use farcall_link::BatchSizing;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Operations drawn for each connection; a run goes through them again and again.
const SCRIPT_LEN: usize = 1 << 16;

/// What one line of the table is about.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) front_end: FrontEnd,
    pub(super) workload: Workload,
    pub(super) distribution: Distribution,
    pub(super) window: u32,
    /// Whether operations travel in batches, and in which.
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
    /// All lines that `plan` asks for.
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

    /// Reads alone, each by itself.
    pub(super) const fn of_reads(front_end: FrontEnd, window: u32) -> Self {
        let (workload, distribution) = (Workload::C, Distribution::Zipfian);
        Self { front_end, workload, distribution, window, batch: None, samples: Vec::new() }
    }
}

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) load: LoadResult,
    pub(crate) server_cpu: Duration,
    pub(super) client_cpu: Duration,
    pub(crate) verbs_per_op: f64,
    pub(super) empty_reads_per_op: f64,
    /// R and F at the end, of each connection that fetches.
    pub(super) tunings: Vec<(u32, u32)>,
    /// What GETs took, of each connection whose GETs are READs.
    pub(super) gets: Vec<ReadCounters>,
}

impl Sample {
    /// Connects, runs, disconnects. What was wrong goes into `problems`.
    pub(super) fn take(
        plan: &KvMainPlan,
        figure: &Figure,
        post: &mut Post,
        repetition: u32,
        problems: &mut Vec<String>,
    ) -> Result<Self, ExperimentError> {
        let front_end = post.front_end;
        let mut connections = connect(plan, figure, post, repetition)?;
        let load = Load::new(load_plan(plan, figure.window));
        let server = &post.server;
        let completed = load.completed();
        let mut marks = Vec::with_capacity(2);
        let result = load
            .run(&mut connections, &mut post.ledger, |_| {
                marks.push((server.cpu_time(), cpu_time(std::process::id())))
            })
            .map_err(|error| front_end.failed(error))?;
        problems.extend(result.problems().into_iter().map(|problem| format!("{figure}: {problem}")));
        let all_ops = completed.load(Ordering::Relaxed).max(1) as f64;
        let targets = || connections.iter().map(Connection::target);
        let (verbs, empty_reads) = targets()
            .map(FrontEndTarget::traffic)
            .fold((0, 0), |sum, traffic| (sum.0 + traffic.verbs, sum.1 + traffic.empty_reads));
        let tunings = targets().filter_map(FrontEndTarget::tuning).collect();
        let gets = targets().filter_map(FrontEndTarget::gets).collect();
        let [start, end]: [_; 2] = marks.try_into().map_err(|_| front_end.failed("the run took no time"))?;
        Ok(Self {
            load: result,
            server_cpu: end.0?.saturating_sub(start.0?),
            client_cpu: end.1?.saturating_sub(start.1?),
            verbs_per_op: verbs as f64 / all_ops,
            empty_reads_per_op: empty_reads as f64 / all_ops,
            tunings,
            gets,
        })
    }

    /// So much of this a GET; not a number if no GET is READs.
    pub(super) fn per_get(&self, count: impl Fn(&ReadCounters) -> u64) -> f64 {
        let sum = |count: &dyn Fn(&ReadCounters) -> u64| self.gets.iter().map(count).sum::<u64>() as f64;
        sum(&count) / sum(&|counters| counters.gets)
    }

    /// Microseconds of a process's CPU time for each operation.
    pub(crate) fn us_per_op(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.load.ops.max(1) as f64
    }
}

/// The plan of a run at `window`.
pub(super) fn load_plan(plan: &KvMainPlan, window: u32) -> LoadPlan {
    LoadPlan {
        window,
        warm_up: plan.stage.warm_up,
        duration: plan.stage.duration,
        shape: plan.shape,
        loaded: plan.records,
    }
}

/// Fresh connections, each with its own sequence of operations.
pub(super) fn connect(
    plan: &KvMainPlan,
    figure: &Figure,
    post: &Post,
    repetition: u32,
) -> Result<Vec<Connection<FrontEndTarget>>, ExperimentError> {
    let &Figure { workload, distribution, window, batch, .. } = figure;
    let (front_end, ready) = (post.front_end, post.server.ready());
    (0..plan.connections)
        .map(|stream| {
            let target = match batch {
                Some(batch) => front_end.connect_in_batches(plan, ready, window, batch),
                None => front_end.connect(plan, ready, window),
            };
            let target = target.map_err(|error| post.front_end.failed(error))?;
            let mut ops = OpStream::new(StreamConfig {
                workload,
                distribution,
                records: plan.records,
                // Repetitions differ, front ends do not: every rival of a repetition does the same operations.
                seed: plan.stage.seed.wrapping_add(u64::from(repetition)),
                stream: u64::from(stream),
                streams: u64::from(plan.connections),
            });
            Ok(Connection::new(target, ops.script(SCRIPT_LEN)))
        })
        .collect()
}
