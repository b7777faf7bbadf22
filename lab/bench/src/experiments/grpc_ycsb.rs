//! The YCSB core workloads over gRPC's transports (RR-Compound, section V-E).

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress, Sampled};
use super::grpc_calls::table_of_ratios;
use crate::grpc::{Preset, Ycsb, YcsbTask, ycsb};
use crate::measure::{LatencyRecorder, pin_thread};
use crate::report::{Column, Figure, Report, Table};
use crate::workload::Workload;
use farcall::select::SelectedNic;

const NOTES: [&str; 3] = [
    "Every value is checked, of scans the order of keys, too. Each run has a fresh server, whose store takes the \
     records and answers when the system has them; it waits for no disk.",
    "Keys of 23 B and values of 1,000 B; scans of 1 to 100 records; Zipf .99, in D the latest. A read-modify-write \
     is one operation.",
    "All clients are in one thread, each with a connection and one operation at a time; the server answers by one thread.",
];

/// Plan of the experiment.
pub struct YcsbPlan {
    /// Cores, repetitions, seed.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Transports of the calls; the others are compared with the first.
    pub presets: Vec<Preset>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Number of clients.
    pub clients: usize,
    /// Records loaded before each run.
    pub records: u64,
    /// Operations of a run, over all clients.
    pub operations: u64,
}

/// Measures the workloads under the presets, interleaved.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn run(plan: &YcsbPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let YcsbPlan { env, chosen, clients, records, operations, .. } = plan;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.replace("repetitions", format!("{}, interleaved; medians with ranges", env.repetitions));
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("clients", clients.to_string());
    conditions.push("records", records.to_string());
    conditions.push("operations", format!("{operations} of all clients, in each run"));
    let mut report = env.report("YCSB over gRPC", conditions, chosen.selection.provider);
    let task = |&(workload, preset): &(Workload, Preset)| YcsbTask {
        preset,
        workload,
        clients: *clients,
        records: *records,
        operations: *operations,
    };
    let pairs =
        plan.workloads.iter().flat_map(|workload| plan.presets.iter().map(|preset| (*workload, *preset)));
    let title = |pair: &_| task(pair).to_string();
    let lines = env.sample(pairs, &mut report, progress, title, |pair, repetition, _| {
        let seed = env.seed.wrapping_add(repetition.into());
        Ok::<_, ExperimentError>(Some(ycsb(task(pair), chosen, &env.pair_plan(), seed)?))
    })?;
    report.tables.push(table_of_figures(&lines));
    report.tables.push(table_of_ratios("workload", &lines, |it| it.per_second));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(report)
}

fn p50_us(latencies: &LatencyRecorder) -> f64 {
    quantile_us(latencies, latencies.summary().p50_ns)
}

fn p99_us(latencies: &LatencyRecorder) -> f64 {
    quantile_us(latencies, latencies.summary().p99_ns)
}

/// Converts nanoseconds to microseconds; NaN if there was no such operation.
fn quantile_us(latencies: &LatencyRecorder, ns: u64) -> f64 {
    if latencies.count() == 0 { f64::NAN } else { ns as f64 / 1e3 }
}

fn table_of_figures(lines: &[Sampled<(Workload, Preset), Ycsb>]) -> Table {
    let figures: [Figure<Ycsb>; 7] = [
        (Column::new("per_second", "operations/s"), |it| it.per_second),
        (Column::with_decimals("read_p50_us", "reads\np50 µs", 1), |it| p50_us(&it.reads)),
        (Column::median("read_p99_us", "reads\np99 µs", 1), |it| p99_us(&it.reads)),
        (Column::with_decimals("write_p50_us", "writes\np50 µs", 1), |it| p50_us(&it.writes)),
        (Column::median("write_p99_us", "writes\np99 µs", 1), |it| p99_us(&it.writes)),
        (Column::median("client_cores", "client\ncores", 2), |it| it.cores.client),
        (Column::median("server_cores", "server\ncores", 2), |it| it.cores.server),
    ];
    let lead = vec![Column::new("workload", "workload"), Column::new("preset", "preset")];
    let rows = lines.iter().map(|Sampled { subject: (workload, preset), samples }| {
        (vec![workload.to_string().into(), preset.to_string().into()], &samples[..])
    });
    Table::of_samples("Workloads", lead, &figures, rows)
}
