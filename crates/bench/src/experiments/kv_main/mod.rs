//! The main job: the same key-value store behind TCP, a Unix socket and RPC over RDMA verbs, between two processes.
//!
//! Each door has a server process of its own, pinned to one core; the client is this process, pinned to another. All
//! figures are taken interleaved: one repetition of everything, then the next. Every value read is checked. Besides
//! speed: CPU time of both ends, system calls and heap operations per call, idle CPU, leaks, and a server killed and
//! started again under load.

mod crash;
mod door;
mod figures;
mod fill;
mod idle;
mod rows;
mod steady;

pub use door::{Door, DoorTarget};

use super::server::{ServerCommand, ServerError, ServerProcess};
use super::stage::{Progress, Stage};
use crate::baseline::{self, Baseline, BaselineResult, PeerError};
use crate::load::{Ledger, LoadError, TargetError, tuning_condition};
use crate::measure::{CoreError, Footprint, ProcessError, pin_thread};
use crate::report::Report;
use crate::workload::{Distribution, RecordShape, Workload};
use farcall_providers::Selection;
use figures::{Figure, Sample};
use std::time::Duration;

/// How long a server may take to end after SIGTERM.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Debug, Clone)]
pub struct KvMainPlan {
    /// Cores, durations, repetitions, seed.
    pub stage: Stage,
    /// Records loaded before the measurements.
    pub records: u64,
    /// Sizes of keys and values.
    pub shape: RecordShape,
    /// Workloads with their request distributions.
    pub workloads: Vec<(Workload, Distribution)>,
    /// Outstanding operations on each connection.
    pub windows: Vec<u32>,
    /// Connections, all run by one client thread.
    pub connections: u32,
    /// Ways to the store.
    pub doors: Vec<Door>,
    /// The RNIC of both ends.
    pub nic: Selection,
}

impl KvMainPlan {
    /// The main job on `stage`: YCSB-C with Zipf .99 at windows 1 and 16 over every door. With `all`, workloads A, B, D and
    /// F, and C with uniform requests, too.
    #[must_use]
    pub fn new(stage: Stage, nic: Selection, all: bool) -> Self {
        let mut workloads = vec![(Workload::C, Distribution::Zipfian)];
        if all {
            workloads.push((Workload::C, Distribution::Uniform));
            workloads.extend(
                [Workload::A, Workload::B, Workload::D, Workload::F]
                    .map(|workload| (workload, workload.distribution())),
            );
        }
        Self {
            stage,
            records: 100_000,
            shape: RecordShape::default(),
            workloads,
            windows: vec![1, 16],
            connections: 1,
            doors: Door::ALL.to_vec(),
            nic,
        }
    }
}

/// The main job could not be done. What was wrong with the results is in the report instead.
#[derive(Debug, thiserror::Error)]
pub enum KvMainError {
    /// A server process.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A bare limit.
    #[error(transparent)]
    Baseline(#[from] PeerError),
    /// A run broke off.
    #[error("{door}: {source}")]
    Load {
        /// Over which door.
        door: Door,
        /// Why.
        source: LoadError,
    },
    /// A connection.
    #[error("{door}: {source}")]
    Connect {
        /// To which door.
        door: Door,
        /// Why not.
        source: TargetError,
    },
    /// A figure of a process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Pinning.
    #[error(transparent)]
    Core(#[from] CoreError),
}

/// A door, its server, and what must be true of its records.
pub(super) struct Post {
    pub(super) door: Door,
    pub(super) server: ServerProcess,
    pub(super) ledger: Ledger,
    /// What the server held when it was filled and nobody was connected.
    pub(super) before: Footprint,
}

/// Does the main job. The calling thread is pinned to the stage's client core.
///
/// # Errors
/// When it cannot be done at all; wrong results are problems of the report.
pub fn run(plan: &KvMainPlan, progress: Progress<'_>) -> Result<Report, KvMainError> {
    pin_thread(plan.stage.client_core)?;
    let mut report = Report::new(rows::TITLE, rows::conditions(plan)).over(plan.nic.wish);
    report.notes.extend(plan.stage.single_core_note());
    let mut posts = Vec::new();
    for door in &plan.doors {
        if !progress(&format!("{door}: starting a server and loading {} records", plan.records)) {
            return Ok(interrupted(report));
        }
        posts.push(open(plan, *door)?);
    }
    let mut figures: Vec<Figure> = Figure::all_of(plan);
    let mut limits: Vec<BaselineResult> = Vec::new();
    for repetition in 1..=plan.stage.repetitions {
        limits.push(baseline::measure(Baseline::SharedMemory, &plan.stage.baseline_plan())?);
        for figure in &mut figures {
            if !progress(&format!("{figure} ({repetition} of {})", plan.stage.repetitions)) {
                return Ok(interrupted(report));
            }
            if let Some(post) = posts.iter_mut().find(|post| post.door == figure.door) {
                figure.samples.push(Sample::take(plan, figure, post, repetition, &mut report.problems)?);
            }
        }
    }
    report.tables.push(rows::main_table(&figures, &limits));
    report.notes.push(rows::VERBS_NOTE.to_owned());
    let tunings =
        figures.iter().flat_map(|figure| &figure.samples).flat_map(|sample| sample.tunings.iter().copied());
    if let Some(condition) = tuning_condition(tunings) {
        report.conditions.push("rf-rpc", condition);
    }
    finish(plan, posts, report, progress)
}

/// Everything but speed.
fn finish(
    plan: &KvMainPlan,
    mut posts: Vec<Post>,
    mut report: Report,
    progress: Progress<'_>,
) -> Result<Report, KvMainError> {
    let mut costs = Vec::new();
    for post in &mut posts {
        if !progress(&format!("{}: counting system calls and heap operations", post.door)) {
            return Ok(interrupted(report));
        }
        costs.push(steady::measure(plan, post, &mut report)?);
    }
    if !progress("all servers idle, with clients connected") {
        return Ok(interrupted(report));
    }
    let idle = idle::measure(plan, &posts, &mut report)?;
    report.tables.push(rows::costs_table(&costs, &idle));
    for post in posts {
        close(post, &mut report)?;
    }
    let mut crashes = Vec::new();
    for door in crash::doors(plan) {
        if !progress(&format!("{door}: killing the server under load and starting it again")) {
            return Ok(interrupted(report));
        }
        crashes.push(crash::measure(plan, door, &mut report)?);
    }
    report.tables.push(rows::crash_table(&crashes));
    Ok(report)
}

fn interrupted(mut report: Report) -> Report {
    report.problems.push("interrupted before the end".to_owned());
    report
}

fn open(plan: &KvMainPlan, door: Door) -> Result<Post, KvMainError> {
    let server = ServerProcess::start(&ServerCommand::this_program(
        door.serve_args(&plan.nic, None),
        plan.stage.server_core,
    ))?;
    fill::fill(plan, door, &server)?;
    let before = Footprint::of(server.pid())?;
    Ok(Post { door, server, ledger: Ledger::new(plan.records), before })
}

/// Memory that allocators and the kernel may keep without it being a leak.
const MEMORY_SLACK_BYTES: u64 = 8 << 20;

/// Looks for leaks, then ends the server.
fn close(post: Post, report: &mut Report) -> Result<(), KvMainError> {
    let leaks =
        idle::settled_footprint(post.server.pid(), post.before)?.leaks_since(post.before, MEMORY_SLACK_BYTES);
    report.problems.extend(leaks.iter().map(|leak| format!("{}: server: {leak}", post.door)));
    if let Err(error) = post.server.stop(STOP_PATIENCE) {
        report.problems.push(format!("{}: {error}", post.door));
    }
    Ok(())
}
