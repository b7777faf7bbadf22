//! The main benchmark: the same key-value store over TCP, a Unix socket and RPC over RDMA verbs, between two
//! processes.
//!
//! Each front end has a server process of its own, pinned to one core; the client is this process, pinned to another.
//! All figures are interleaved: one repetition of each, then the next. Every value read is checked. In addition to
//! speed the benchmark measures CPU time of both ends, system calls and heap operations per call, idle CPU and leaks,
//! and it kills and restarts a server under load.

pub mod busy;
mod crash;
mod figures;
mod fill;
mod front_end;
mod idle;
mod rows;
mod steady;
mod store_client;
#[cfg(feature = "verbs")]
mod store_fixture;
mod store_service;

pub use front_end::{FrontEnd, FrontEndTarget};
pub(crate) use store_client::StoreClient;
pub use store_service::StoreService;
use store_service::private_socket;

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress};
use super::foreign_server;
use super::reach::Reach;
use super::ready::Ready;
use super::server::{ServerError, ServerProcess};
use super::service::{Served, Service};
use crate::baseline::{self, Baseline, BaselineResult};
use crate::load::{AUTO, Ledger, tuning_condition};
use crate::measure::{Footprint, contention_warning, pin_thread};
use crate::peer::PeerLauncher;
use crate::report::Report;
use crate::workload::{Distribution, RecordShape, Workload};
use farcall::rpc::tune::Decision;
use farcall_link::BatchSizing;
use farcall_verbs::with_sources;
use figures::{Figure, Sample};
use std::process::Command;
use std::time::Duration;
#[cfg(feature = "verbs")]
pub(crate) use store_fixture::{KvTask, StoreFixture};

/// Bytes that another project's store may need for a record in addition to key and value, and minimum for all records.
const RECORD_OVERHEAD_BYTES: usize = 128;
const MEMORY_MIN_BYTES: u64 = 64 << 20;

/// Timeout for a server to end after SIGTERM.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Time limit under contention for the processors, unless the measurements alone take half of it.
const CONTENDED_LIMIT: Duration = Duration::from_secs(100);

/// Note on the measurements that are not taken between two halves.
const OF_ONE_HOST_NOTE: &str = "System calls, heap operations, idle servers, leaks and killed servers are measured \
                                with both ends on one host.";

/// Plan of the experiment.
#[derive(Debug, Clone)]
pub struct KvMainPlan {
    /// Cores, durations, repetitions, seed.
    pub env: ExperimentEnv,
    /// Records loaded before the measurements.
    pub records: u64,
    /// Sizes of keys and values.
    pub shape: RecordShape,
    /// Workloads with their request distributions.
    pub workloads: Vec<(Workload, Distribution)>,
    /// Outstanding operations on each connection.
    pub windows: Vec<u32>,
    /// Client processes, of one thread each; a single one is this process.
    pub clients: u32,
    /// Connections of each client.
    pub connections: u32,
    /// Operations a second of all clients together, at fixed intervals; if `None`, each begins when another has
    /// completed.
    pub rate: Option<u32>,
    /// Batch sizes. Over verbs, each window is measured without batches and with each batch size that it can fill.
    pub batches: Vec<BatchSizing>,
    /// Front ends of the store.
    pub front_ends: Vec<FrontEnd>,
    /// RNIC of both ends, and profile with which connections start.
    pub reach: Reach,
}

/// A front end, its server, and the expected content of its records.
pub(super) struct ServerUnderTest {
    pub(super) front_end: FrontEnd,
    pub(super) server: ServerProcess,
    pub(super) ledger: Ledger,
    /// Resources of the server after loading and without connections; `None` if it runs on another host.
    pub(super) before: Option<Footprint>,
}

/// Runs the main benchmark. The calling thread is pinned to the environment's client core.
///
/// # Errors
/// Returns an error if the benchmark cannot run; wrong results are problems of the report.
pub fn run(plan: &KvMainPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let warning = contention_warning();
    let Some(warning) = warning else { return run_to_the_end(plan, progress) };
    let limit = CONTENDED_LIMIT.max(2 * measuring_time(plan));
    let plan = KvMainPlan { env: plan.env.clone().ending_within(limit), ..plan.clone() };
    let why = || format!("the time for this run under contention, {limit:?}, has expired: {warning}");
    let mut in_time = |what: &str| !plan.env.is_late() && progress(what);
    let report = run_to_the_end(&plan, &mut in_time);
    let mut report = report.map_err(|error| {
        if plan.env.is_late() { format!("{}; {}", with_sources(&*error), why()).into() } else { error }
    })?;
    if plan.env.is_late() {
        report.problems.push(why());
    }
    report.warn(warning);
    Ok(report)
}

/// Returns the duration of the measurements, without the time between them.
fn measuring_time(plan: &KvMainPlan) -> Duration {
    let figures = u32::try_from(Figure::all_of(plan).len()).unwrap_or(u32::MAX);
    (plan.env.warm_up + plan.env.duration).saturating_mul(figures.saturating_mul(plan.env.repetitions))
}

fn run_to_the_end(plan: &KvMainPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    pin_thread(plan.env.client_core)?;
    let mut report = plan.env.report(rows::TITLE, rows::conditions(plan), plan.reach.nic.provider);
    let mut tested_servers = Vec::new();
    for front_end in &plan.front_ends {
        if !report.goes_on(progress(&format!(
            "{front_end}: starting a server and loading {} records",
            plan.records
        ))) {
            return Ok(report);
        }
        let tested = open(plan, *front_end)?;
        if let Some(chosen) = chosen_at(plan, &tested)? {
            report.conditions.push(AUTO, chosen.to_string());
        }
        tested_servers.push(tested);
    }
    let mut figures: Vec<Figure> = Figure::all_of(plan);
    let mut limits: Vec<BaselineResult> = Vec::new();
    let is_complete = plan.env.interleave(
        &mut figures,
        &mut report,
        progress,
        |figure| figure.to_string(),
        |figure, repetition, report| {
            if limits.len() < repetition as usize && plan.env.server_half().is_none() {
                limits.push(baseline::measure(Baseline::SharedMemory, &plan.env.pair_plan())?);
            }
            if let Some(tested) =
                tested_servers.iter_mut().find(|tested| tested.front_end == figure.front_end)
            {
                figure.samples.push(Sample::take(plan, figure, tested, repetition, &mut report.problems)?);
            }
            Ok::<(), ExperimentError>(())
        },
    )?;
    report.tables.push(rows::main_table(&figures, &limits));
    report.notes.push(rows::VERBS_NOTE.to_owned());
    if let Some(table) = rows::reads_table(&figures) {
        report.tables.push(table);
        report.notes.push(rows::READS_NOTE.to_owned());
    }
    let tunings =
        figures.iter().flat_map(|figure| &figure.samples).flat_map(|sample| sample.tunings.iter().copied());
    if let Some(condition) = tuning_condition(tunings, plan.reach.profile.as_ref()) {
        report.conditions.push("fetching presets", condition);
    }
    if !is_complete {
        return Ok(report);
    }
    if plan.env.server_half().is_some() {
        report.notes.push(OF_ONE_HOST_NOTE.to_owned());
        stop_all(tested_servers, &mut report);
        return Ok(report);
    }
    // If this fails, the report with the previous measurements is still returned.
    if let Err(error) = finish(plan, tested_servers, &mut report, progress) {
        report.problems.push(with_sources(&*error));
    }
    Ok(report)
}

fn stop_all(tested_servers: Vec<ServerUnderTest>, report: &mut Report) {
    for ServerUnderTest { front_end, server, .. } in tested_servers {
        if let Err(error) = server.stop(STOP_PATIENCE) {
            report.problems.push(format!("{front_end}: {}", with_sources(&error)));
        }
    }
}

/// Runs all measurements other than speed.
fn finish(
    plan: &KvMainPlan,
    mut tested_servers: Vec<ServerUnderTest>,
    report: &mut Report,
    progress: Progress<'_>,
) -> Result<(), ExperimentError> {
    let mut costs = Vec::new();
    for tested in &mut tested_servers {
        if !report
            .goes_on(progress(&format!("{}: counting system calls and heap operations", tested.front_end)))
        {
            return Ok(());
        }
        costs.push(steady::measure(plan, tested, report)?);
    }
    if !report.goes_on(progress("all servers idle, with clients connected")) {
        return Ok(());
    }
    let idle = idle::measure(plan, &tested_servers, report)?;
    report.tables.push(rows::costs_table(&costs, &idle));
    report.notes.push(format!(
        "Costs of an operation are counted over {:?} each, an idle server's CPU over {:?}.",
        steady::window(plan),
        idle::window(plan)
    ));
    for tested in tested_servers {
        close(tested, report)?;
    }
    let mut crashes = Vec::new();
    for front_end in crash::front_ends(plan) {
        if !report
            .goes_on(progress(&format!("{front_end}: killing the server under load and starting it again")))
        {
            return Ok(());
        }
        match crash::measure(plan, front_end, report) {
            Ok(crash) => crashes.push(crash),
            Err(error) => {
                report.problems.push(format!("a server killed and started again: {}", with_sources(&*error)))
            }
        }
    }
    report.tables.push(rows::crash_table(&crashes));
    Ok(())
}

impl FrontEnd {
    /// Starts a server of this front end, at the address of a previous one if `again` is given.
    fn serve(self, plan: &KvMainPlan, again: Option<&Ready>) -> Result<ServerProcess, ServerError> {
        if let Self::Foreign(store, socket) = self {
            let (command, cores) = (Command::new(store.program()), [plan.env.server_core]);
            return foreign_server::start(
                store,
                command,
                socket,
                private_socket(),
                memory_bytes(plan),
                &cores,
            );
        }
        let (nic, store) = (plan.reach.nic.clone(), StoreService::new(self, plan));
        if again.is_none() {
            return ServerProcess::serve(&plan.env, &Service { nic, what: Served::Store(store) });
        }
        let launcher = PeerLauncher::with_args(store.args(&nic, "", again));
        ServerProcess::start(&launcher, &[plan.env.server_core])
    }
}

/// Returns memory for all records including the overhead of a store, so that no record is evicted.
fn memory_bytes(plan: &KvMainPlan) -> u64 {
    let record_bytes = plan.shape.key_len_bytes() + plan.shape.value_len_bytes() + RECORD_OVERHEAD_BYTES;
    2 * plan.records * record_bytes as u64 + MEMORY_MIN_BYTES
}

/// Returns the library's choice at a server; `None` if the front end is fixed.
fn chosen_at(plan: &KvMainPlan, tested: &ServerUnderTest) -> Result<Option<Decision>, ExperimentError> {
    let mut options = plan.reach.options(1, STOP_PATIENCE);
    let settled = tested.front_end.settle(&plan.reach, tested.server.ready(), &mut options);
    Ok(settled.map_err(|error| tested.front_end.failed(error))?.1)
}

fn open(plan: &KvMainPlan, front_end: FrontEnd) -> Result<ServerUnderTest, ExperimentError> {
    let server = front_end.serve(plan, None)?;
    fill::fill(plan, front_end, &server)?;
    // Resources of another project's program are not checked.
    let own_pid = server.pid().filter(|_| !matches!(front_end, FrontEnd::Foreign(..)));
    let before = own_pid.map(Footprint::of).transpose()?;
    let ledger = if plan.clients > 1 { Ledger::shared(plan.records) } else { Ledger::new(plan.records) };
    Ok(ServerUnderTest { front_end, server, ledger, before })
}

/// Memory that allocators and the kernel may retain without a leak.
const MEMORY_SLACK_BYTES: u64 = 8 << 20;

/// Checks for leaks, then ends the server.
fn close(tested: ServerUnderTest, report: &mut Report) -> Result<(), ExperimentError> {
    if let (Some(pid), Some(before)) = (tested.server.pid(), tested.before) {
        let leaks = idle::settled_footprint(pid, before)?.leaks_since(before, MEMORY_SLACK_BYTES);
        report.problems.extend(leaks.iter().map(|leak| format!("{}: server: {leak}", tested.front_end)));
    }
    if let Err(error) = tested.server.stop(STOP_PATIENCE) {
        report.problems.push(format!("{}: {}", tested.front_end, with_sources(&error)));
    }
    Ok(())
}
