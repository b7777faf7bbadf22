//! The YCSB core workloads over gRPC's transports (RR-Compound, section V-E).

use super::ExperimentError;
use super::stage::{Progress, Stage};
use crate::grpc::{Preset, Ycsb, YcsbTask, ycsb};
use crate::measure::{LatencyRecorder, PairedRatio, pin_thread};
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
    pub stage: Stage,
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

/// A workload under a preset, with its samples.
struct Line {
    task: YcsbTask,
    samples: Vec<Ycsb>,
}

/// Measures the workloads under the presets, interleaved.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn run(plan: &YcsbPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let YcsbPlan { stage, chosen, clients, records, operations, .. } = plan;
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.replace("repetitions", format!("{}, interleaved; medians with ranges", stage.repetitions));
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("clients", clients.to_string());
    conditions.push("records", records.to_string());
    conditions.push("operations", format!("{operations} of all clients, in each run"));
    let mut report = Report::new("YCSB over gRPC", conditions).over(chosen.selection.provider);
    report.notes.extend(stage.single_core_note());
    let mut lines = Vec::new();
    for workload in plan.workloads.iter().copied() {
        for preset in plan.presets.iter().copied() {
            let task =
                YcsbTask { preset, workload, clients: *clients, records: *records, operations: *operations };
            lines.push(Line { task, samples: Vec::new() });
        }
    }
    stage.interleave(
        &mut lines,
        &mut report,
        progress,
        |line| line.task.to_string(),
        |line, repetition, _| {
            let seed = stage.seed.wrapping_add(repetition.into());
            line.samples.push(ycsb(line.task, chosen, &stage.pair_plan(), seed)?);
            Ok::<(), ExperimentError>(())
        },
    )?;
    report.tables.push(table_of_figures(&lines));
    report.tables.push(table_of_ratios(&lines));
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

fn table_of_figures(lines: &[Line]) -> Table {
    let figures: [Figure<Ycsb>; 7] = [
        (Column::new("per_second", "operations/s"), |it| it.per_second),
        (Column::with_decimals("read_p50_us", "reads\np50 µs", 1), |it| p50_us(&it.reads)),
        (Column::with_decimals("read_p99_us", "reads\np99 µs", 1).median_only(), |it| p99_us(&it.reads)),
        (Column::with_decimals("write_p50_us", "writes\np50 µs", 1), |it| p50_us(&it.writes)),
        (Column::with_decimals("write_p99_us", "writes\np99 µs", 1).median_only(), |it| p99_us(&it.writes)),
        (Column::with_decimals("client_cores", "client\ncores", 2).median_only(), |it| it.cores[1]),
        (Column::with_decimals("server_cores", "server\ncores", 2).median_only(), |it| it.cores[0]),
    ];
    let lead = vec![Column::new("workload", "workload"), Column::new("preset", "preset")];
    let mut table = Table::of_figures("Workloads", lead, &figures);
    for line in lines {
        let lead = vec![line.task.workload.to_string().into(), line.task.preset.to_string().into()];
        table.push_figures(lead, &figures, &line.samples);
    }
    table
}

/// Returns the ratios of the rates of the other presets to that of the first.
fn table_of_ratios(lines: &[Line]) -> Table {
    let columns = vec![
        Column::new("workload", "workload"),
        Column::new("preset", "preset"),
        Column::new("over", "over"),
        Column::with_decimals("ratio", "times better", 2),
        Column::with_decimals("low", "low", 2),
        Column::with_decimals("high", "high", 2),
        Column::with_decimals("confidence_percent", "% sure", 1),
    ];
    let mut table = Table::new("Rates beside the first preset's", columns);
    for line in lines {
        let first = lines.iter().find(|first| first.task.workload == line.task.workload);
        let Some(first) = first.filter(|first| first.task.preset != line.task.preset) else { continue };
        let of = |line: &Line| line.samples.iter().map(|sample| sample.per_second).collect::<Vec<_>>();
        if let Some(ratio) = PairedRatio::of(of(line).into_iter().zip(of(first))) {
            let bounds = [ratio.median, ratio.low, ratio.high, ratio.confidence_percent].map(Into::into);
            let lead =
                [line.task.workload.to_string(), line.task.preset.to_string(), first.task.preset.to_string()];
            table.push(lead.map(Into::into).into_iter().chain(bounds).collect());
        }
    }
    table
}
