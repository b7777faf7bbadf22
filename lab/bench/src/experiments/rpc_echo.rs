//! Round trips of small calls (64-byte requests, 8-byte replies), compared with their lower limits and with common
//! transports.

use super::ExperimentError;
use super::calls::{self, CallSample, CallTask, Callee, Job, PATIENCE, SharedContext};
use super::env::{ExperimentEnv, Progress, Sampled, load_condition};
use super::limits::find_ucx;
use super::preset_ranking::{self, RankedPreset};
use super::server::ServerProcess;
use super::subject::Rival;
use crate::baseline::Baseline;
use crate::load::{AUTO, tuning_condition};
use crate::measure::pin_thread;
use crate::report::{Column, Figure, Report, Table};
use crate::ucx::{Ucx, UcxTest};
use farcall::rpc::tune::LinkProfile;
use farcall::select::Selection;
use farcall_link::BatchSizing;
use std::fmt;

/// Meaning of two columns of the table.
const VERBS_NOTE: &str = "Verbs: all WRITEs, READs and SENDs of both ends, for each call. Empty READs: those among them that found no result yet. \
                          Each is in-bound work of the server's RNIC; here the client's processor executes them, and what they cost \
                          the server is not measured.";

/// Plan of the experiment.
#[derive(Debug)]
pub struct RpcEchoPlan {
    /// Cores, durations, repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub nic: Selection,
    /// Profile with which connections start instead of a probe.
    pub profile: Option<LinkProfile>,
    /// Names of the preset table.
    pub presets: Vec<&'static str>,
    /// Numbers of outstanding calls on each connection.
    pub windows: Vec<u32>,
    /// Work of the service for each call.
    pub job: Job,
    /// Number of threads of the server.
    pub server_threads: u16,
    /// Client processes, of one thread each; a single one is this process.
    pub clients: u32,
    /// Connections of each client.
    pub connections: u32,
    /// Calls a second of all clients together, at fixed intervals; if `None`, each call begins when another has
    /// completed.
    pub rate: Option<u32>,
    /// Batch sizes. Each window is measured without batches, and with each batch size that it can fill.
    pub batches: Vec<BatchSizing>,
    /// `true` if UCX's active messages are measured as well.
    pub with_ucx: bool,
}

/// A measured subject.
#[derive(Debug, Clone, Copy)]
enum What {
    Rival(Rival),
    Rpc(CallTask),
}

/// A subject with its samples.
type Line = Sampled<What, CallSample>;

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rival(rival @ (Rival::Bare(_) | Rival::Libfabric(_))) => rival.fmt(f),
            Self::Rival(rival @ Rival::Ucx(_)) => write!(f, "{rival}, there and back"),
            // These are conditions of the complete report.
            Self::Rpc(task) => CallTask { connections: 1, clients: 1, rate: None, ..*task }.fmt(f),
        }
    }
}

/// Measures echoes under each selected preset, plain ping-pongs and UCX's active messages, interleaved.
///
/// # Errors
/// Returns an error if no preset can be measured. A missing UCX is a note.
pub fn run(plan: &RpcEchoPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let RpcEchoPlan { env, nic, .. } = plan;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.push("provider", format!("{} (RC; uc-rpc: UC; herd: UC and UD; ud-rpc: UD)", nic.provider));
    let Job { request_bytes, response_bytes, process_us } = plan.job;
    let sizes = format!("{request_bytes} B requests, {response_bytes} B replies, {process_us} µs of work");
    conditions.push("sizes", sizes);
    let RpcEchoPlan { server_threads, clients, connections, .. } = plan;
    let threads = format!(
        "{server_threads} server thread(s), {clients} client process(es) of one thread and {connections} connection(s)"
    );
    conditions.push("threads", threads);
    conditions.push("load", load_condition(plan.rate));
    let mut report = env.report("Echo calls between two processes", conditions, nic.provider);
    let ucx = find_ucx(plan.with_ucx && env.server_half().is_none(), &mut report);
    let server = calls::start_echo(env, nic, plan.server_threads)?;
    let whats = plan.whats(ucx.is_some());
    let lines = env.sample(whats, &mut report, progress, What::to_string, |what, _, report| {
        what.measure(plan, &server, ucx.as_ref(), report)
    })?;
    report.tables.push(table(&lines));
    report.notes.push(VERBS_NOTE.to_owned());
    tell_what_was_chosen(&lines, &mut report);
    let samples = lines.iter().flat_map(|line| &line.samples);
    let tunings = samples.flat_map(|sample| sample.tunings.iter().copied());
    if let Some(condition) = tuning_condition(tunings, plan.profile.as_ref()) {
        report.conditions.push("fetching presets", condition);
    }
    server.end(PATIENCE, &mut report);
    Ok(report)
}

/// Returns the problem that a service did not keep up with its schedule, if any call was not sent.
fn unsent_problem(what: &dyn fmt::Display, unsent: u64) -> Option<String> {
    (unsent > 0).then(|| {
        format!(
            "{what}: the service did not keep up: {unsent} of the schedule never began; \
             their latencies count to the end of the run, lower the rate or widen the window"
        )
    })
}

impl RpcEchoPlan {
    fn whats(&self, with_ucx: bool) -> Vec<What> {
        let bare = |baseline| What::Rival(Rival::Bare(baseline));
        let mut whats = Vec::new();
        for &window in &self.windows {
            let fills = |batch: &&BatchSizing| batch.least() <= window;
            for &preset in &self.presets {
                let task = CallTask {
                    callee: Callee::of(self.job),
                    window,
                    clients: self.clients,
                    connections: self.connections,
                    rate: self.rate,
                    ..CallTask::small(preset)
                };
                let batches = self.batches.iter().filter(fills).copied().map(Some);
                let tasks = [None].into_iter().chain(batches).map(|batch| CallTask { batch, ..task });
                whats.extend(tasks.map(What::Rpc));
            }
        }
        if self.env.server_half().is_some() {
            // The limits without Farcall are those of one host.
            return whats;
        }
        whats.insert(0, bare(Baseline::SharedMemory));
        if with_ucx {
            whats.push(What::Rival(Rival::Ucx(UcxTest::AmLatency)));
        }
        whats.extend([Baseline::TcpSpin, Baseline::TcpEpoll, Baseline::UnixEpoll].map(bare));
        whats
    }
}

impl What {
    fn measure(
        self,
        plan: &RpcEchoPlan,
        server: &ServerProcess,
        ucx: Option<&Ucx>,
        report: &mut Report,
    ) -> Result<Option<CallSample>, ExperimentError> {
        let rival = match self {
            Self::Rpc(task) => {
                let RpcEchoPlan { env, nic, profile, .. } = plan;
                let context = SharedContext { env, nic, profile: profile.as_ref(), server };
                let sample = calls::measure(&task, &context)?;
                report.problems.extend(unsent_problem(&task, sample.unsent));
                return Ok(Some(sample));
            }
            Self::Rival(rival) => rival,
        };
        // UCX reports half of a round trip.
        let factor = if matches!(rival, Rival::Ucx(_)) { 2.0 } else { 1.0 };
        Ok(rival.measure(&plan.env, ucx, report)?.map(|figures| CallSample {
            figures: figures.stretched(factor),
            latency: None,
            round_mean_us: f64::NAN,
            verbs_per_call: f64::NAN,
            empty_reads_per_call: f64::NAN,
            server_cpu_us_per_call: f64::NAN,
            client_cpu_us_per_call: f64::NAN,
            choice: None,
            tunings: Vec::new(),
            unsent: 0,
            empty_share: f64::NAN,
        }))
    }
}

/// Reports the library's choice, if it chose the preset, and its ratio to the best preset.
fn tell_what_was_chosen(lines: &[Line], report: &mut Report) {
    let choice = lines.iter().flat_map(|line| &line.samples).find_map(|sample| sample.choice.as_ref());
    let Some(choice) = choice else { return };
    report.conditions.push(AUTO, choice.to_string());
    let mut workloads: Vec<(String, Vec<RankedPreset>)> = Vec::new();
    for Sampled { subject: what, samples } in lines {
        // With a schedule, the rate is the same under every preset that keeps up.
        let What::Rpc(task @ CallTask { rate: None, .. }) = what else { continue };
        let workload = task.workload();
        let ranked_preset = RankedPreset::of_calls(task.preset, samples);
        match workloads.iter_mut().find(|(known, _)| *known == workload) {
            Some((_, presets_measured)) => presets_measured.push(ranked_preset),
            None => workloads.push((workload, vec![ranked_preset])),
        }
    }
    if let Some(table) = preset_ranking::auto_beside_the_best(&workloads) {
        report.tables.push(table);
        report.note(preset_ranking::AUTO_NOTE);
    }
}

fn table(lines: &[Line]) -> Table {
    let figures: [Figure<CallSample>; 7] = [
        (Column::with_decimals("p50_us", "p50 µs", 3), |sample| sample.figures.p50_us),
        (Column::median("p99_us", "p99 µs", 3), |sample| sample.figures.p99_us),
        (Column::median("p999_us", "p99.9 µs", 3).wide(), |sample| sample.figures.p999_us),
        (Column::new("per_second", "calls/s"), |sample| sample.figures.per_second),
        (Column::median("verbs_per_call", "verbs", 3), |sample| sample.verbs_per_call),
        (Column::median("empty_reads_per_call", "empty READs", 3), |sample| sample.empty_reads_per_call),
        (Column::median("server_cpu_us_per_call", "server CPU µs", 3).wide(), |sample| {
            sample.server_cpu_us_per_call
        }),
    ];
    let rows = lines.iter().map(|line| (vec![line.subject.to_string().into()], &line.samples[..]));
    Table::of_samples("Round trips", vec![Column::new("what", "what")], &figures, rows)
}
