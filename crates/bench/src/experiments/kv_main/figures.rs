//! One line of the main table, and the samples taken for it.

use super::{Door, KvMainError, KvMainPlan, Post};
use crate::load::{Connection, Load, LoadPlan, LoadResult};
use crate::measure::CpuTime;
use crate::workload::{Distribution, OpStream, StreamConfig, Workload};
use std::fmt;

/// Operations drawn for each connection; a run goes through them again and again.
const SCRIPT_LEN: usize = 1 << 16;

/// What one line of the table is about.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) door: Door,
    pub(super) workload: Workload,
    pub(super) distribution: Distribution,
    pub(super) window: u32,
    pub(super) samples: Vec<Sample>,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, YCSB-{} {}, window {}", self.door, self.workload, self.distribution, self.window)
    }
}

impl Figure {
    /// All lines that `plan` asks for.
    pub(super) fn all_of(plan: &KvMainPlan) -> Vec<Self> {
        let mut figures = Vec::new();
        for (workload, distribution) in &plan.workloads {
            for window in &plan.windows {
                figures.extend(plan.doors.iter().map(|door| Self {
                    door: *door,
                    workload: *workload,
                    distribution: *distribution,
                    window: *window,
                    samples: Vec::new(),
                }));
            }
        }
        figures
    }
}

/// One run.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) load: LoadResult,
    pub(super) server_cpu: CpuTime,
    pub(super) client_cpu: CpuTime,
    pub(super) carrying_per_op: f64,
    pub(super) empty_reads_per_op: f64,
    /// R and F at the end, of each connection that fetches.
    pub(super) tunings: Vec<(u32, u32)>,
}

impl Sample {
    /// Connects, runs, disconnects. What was wrong goes into `problems`.
    pub(super) fn take(
        plan: &KvMainPlan,
        figure: &Figure,
        post: &mut Post,
        repetition: u32,
        problems: &mut Vec<String>,
    ) -> Result<Self, KvMainError> {
        let door = post.door;
        let mut connections =
            connect(plan, figure.workload, figure.distribution, post, figure.window, repetition)?;
        let load =
            Load::new(load_plan(plan, figure.window)).map_err(|source| KvMainError::Load { door, source })?;
        let (server, client) = (post.server.pid(), std::process::id());
        let completed = load.completed();
        let mut marks = Vec::with_capacity(2);
        let result = load
            .run(&mut connections, &mut post.ledger, |_| {
                marks.push((CpuTime::of(server), CpuTime::of(client)))
            })
            .map_err(|source| KvMainError::Load { door, source })?;
        problems.extend(result.problems().into_iter().map(|problem| format!("{figure}: {problem}")));
        let all_ops = completed.load(std::sync::atomic::Ordering::Relaxed).max(1);
        let traffic = connections.iter_mut().map(|connection| connection.target().traffic());
        let (carrying, empty_reads) =
            traffic.fold((0, 0), |sum, traffic| (sum.0 + traffic.carrying, sum.1 + traffic.empty_reads));
        let tunings = connections.iter_mut().filter_map(|connection| connection.target().tuning()).collect();
        let mut cpu = marks.into_iter();
        let (Some(start), Some(end)) = (cpu.next(), cpu.next()) else {
            return Err(KvMainError::Load {
                door,
                source: crate::load::LoadError::Plan("the run took no time"),
            });
        };
        Ok(Self {
            load: result,
            server_cpu: end.0?.since(start.0?),
            client_cpu: end.1?.since(start.1?),
            carrying_per_op: carrying as f64 / all_ops as f64,
            empty_reads_per_op: empty_reads as f64 / all_ops as f64,
            tunings,
        })
    }

    /// Operations for each second of CPU time that the server used.
    pub(super) fn ops_per_server_core_second(&self) -> f64 {
        self.load.ops as f64 * 1e9 / self.server_cpu.total_ns.max(1) as f64
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
    workload: Workload,
    distribution: Distribution,
    post: &Post,
    window: u32,
    repetition: u32,
) -> Result<Vec<Connection<super::DoorTarget>>, KvMainError> {
    (0..plan.connections)
        .map(|stream| {
            let target = post.door.connect(&plan.nic, post.server.ready(), window);
            let target = target.map_err(|source| KvMainError::Connect { door: post.door, source })?;
            let mut ops = OpStream::new(StreamConfig {
                workload,
                distribution,
                records: plan.records,
                // Repetitions differ, doors do not: every rival of a repetition does the same operations.
                seed: plan.stage.seed.wrapping_add(u64::from(repetition)),
                stream: u64::from(stream),
                streams: u64::from(plan.connections),
            });
            Ok(Connection::new(target, ops.script(SCRIPT_LEN)))
        })
        .collect()
}
