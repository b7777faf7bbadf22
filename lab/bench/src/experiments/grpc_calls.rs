//! gRPC over its transports: latencies of sequential calls, rates of concurrent calls, streams.

use super::ExperimentError;
use super::line::Sample;
use super::stage::{Progress, Stage};
use crate::grpc::{self, Load, MESSAGE_LEN_BYTES, Preset};
use crate::measure::{PairedRatio, pin_thread};
use crate::report::{Column, Figure, Report, Table};
use farcall::select::SelectedNic;

/// Loads that are measured under each preset.
const LOADS: [Load; 4] = [Load::Unary, Load::Converse, Load::Window, Load::Repeat];

const NOTES: [&str; 2] = [
    "Every answer is checked. The generated code is tonic's, except for unary calls under `direct`; each end is one thread with one runtime.",
    "Latencies of a stream's messages are the times between two of them. Nothing is encrypted.",
];

/// Plan of the experiment.
pub struct GrpcPlan {
    /// Cores, durations, repetitions.
    pub stage: Stage,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Transports of the calls; the others are compared with the first.
    pub presets: Vec<Preset>,
}

/// A preset under a load, with its samples.
struct Line {
    preset: Preset,
    load: Load,
    samples: Vec<Sample>,
}

/// Measures the presets, interleaved.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn run(plan: &GrpcPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let GrpcPlan { stage, chosen, .. } = plan;
    pin_thread(stage.client_core)?;
    let mut conditions = stage.conditions();
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("threads", "1 at each end; over streams both poll, over TCP they sleep in epoll");
    conditions.push("message", format!("{MESSAGE_LEN_BYTES} B"));
    let mut report = Report::new("gRPC between two processes", conditions).over(chosen.selection.provider);
    report.notes.extend(stage.single_core_note());
    let pairs = LOADS.iter().flat_map(|load| plan.presets.iter().map(|preset| (*load, *preset)));
    let mut lines: Vec<Line> =
        pairs.map(|(load, preset)| Line { preset, load, samples: Vec::new() }).collect();
    stage.interleave(
        &mut lines,
        &mut report,
        progress,
        |line| format!("{}, {}", line.preset, line.load),
        |line, _, _| {
            let measured = grpc::measure(line.preset, line.load, chosen, &stage.pair_plan())?;
            line.samples.push(Sample {
                client_cores: measured.client_cores,
                server_cores: measured.server_cores,
                ..measured.trips.into()
            });
            Ok::<(), ExperimentError>(())
        },
    )?;
    report.tables.push(table_of_figures(&lines));
    report.tables.push(table_of_ratios(&lines));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(report)
}

fn table_of_figures(lines: &[Line]) -> Table {
    let figures: [Figure<Sample>; 5] = [
        (Column::with_decimals("p50_us", "p50 µs", 2), |sample| sample.p50_us),
        (Column::with_decimals("p99_us", "p99 µs", 2).median_only(), |sample| sample.p99_us),
        (Column::new("per_second", "per second"), |sample| sample.per_second),
        (Column::with_decimals("client_cores", "client\ncores", 2).median_only(), |it| it.client_cores),
        (Column::with_decimals("server_cores", "server\ncores", 2).median_only(), |it| it.server_cores),
    ];
    let lead = vec![Column::new("load", "load"), Column::new("preset", "preset")];
    let mut table = Table::of_figures("Calls and messages", lead, &figures);
    for line in lines {
        let lead = vec![line.load.to_string().into(), line.preset.to_string().into()];
        table.push_figures(lead, &figures, &line.samples);
    }
    table
}

/// Returns the ratios of the first preset's figures to those of the others: how many times better the others are.
fn table_of_ratios(lines: &[Line]) -> Table {
    let columns = vec![
        Column::new("load", "load"),
        Column::new("preset", "preset"),
        Column::new("over", "over"),
        Column::with_decimals("ratio", "times better", 2),
        Column::with_decimals("low", "low", 2),
        Column::with_decimals("high", "high", 2),
        Column::with_decimals("confidence_percent", "% sure", 1),
    ];
    let mut table = Table::new("Rates beside the first preset's", columns);
    for line in lines {
        let first = lines.iter().find(|first| first.load == line.load);
        let Some(first) = first.filter(|first| first.preset != line.preset) else { continue };
        let of = |line: &Line| line.samples.iter().map(|sample| sample.per_second).collect::<Vec<_>>();
        if let Some(ratio) = PairedRatio::of(of(line).into_iter().zip(of(first))) {
            let bounds = [ratio.median, ratio.low, ratio.high, ratio.confidence_percent].map(Into::into);
            let lead = [line.load.to_string(), line.preset.to_string(), first.preset.to_string()];
            table.push(lead.map(Into::into).into_iter().chain(bounds).collect());
        }
    }
    table
}
