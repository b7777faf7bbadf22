//! gRPC over its transports: latencies of sequential calls, rates of concurrent calls, streams.

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress, Sampled};
use super::subject::Sample;
use crate::grpc::{self, Load, MESSAGE_LEN_BYTES, Preset};
use crate::measure::pin_thread;
use crate::report::{Column, Figure, Report, Table};
use farcall::select::SelectedNic;
use std::fmt;

/// Loads that are measured under each preset.
const LOADS: [Load; 4] = [Load::Unary, Load::Converse, Load::Window, Load::Repeat];

const NOTES: [&str; 2] = [
    "Every answer is checked. The generated code is tonic's, except for unary calls under `direct`; each end is one thread with one runtime.",
    "Latencies of a stream's messages are the times between two of them. Nothing is encrypted.",
];

/// Plan of the experiment.
pub struct GrpcPlan {
    /// Cores, durations, repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Transports of the calls; the others are compared with the first.
    pub presets: Vec<Preset>,
}

/// Measures the presets, interleaved.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn run(plan: &GrpcPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let GrpcPlan { env, chosen, .. } = plan;
    pin_thread(env.client_core)?;
    let mut conditions = env.conditions();
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("threads", "1 at each end; over streams both poll, over TCP they sleep in epoll");
    conditions.push("message", format!("{MESSAGE_LEN_BYTES} B"));
    let mut report = env.report("gRPC between two processes", conditions, chosen.selection.provider);
    let pairs = LOADS.iter().flat_map(|load| plan.presets.iter().map(|preset| (*load, *preset)));
    let title = |(load, preset): &(Load, Preset)| format!("{preset}, {load}");
    let lines = env.sample(pairs, &mut report, progress, title, |(load, preset), _, _| {
        let measured = grpc::measure(*preset, *load, chosen, &env.pair_plan())?;
        Ok::<_, ExperimentError>(Some(Sample { cores: measured.cores, ..measured.trips.into() }))
    })?;
    report.tables.push(table_of_figures(&lines));
    report.tables.push(table_of_ratios("load", &lines, |sample| sample.per_second));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(report)
}

fn table_of_figures(lines: &[Sampled<(Load, Preset), Sample>]) -> Table {
    let figures: [Figure<Sample>; 5] = [
        (Column::with_decimals("p50_us", "p50 µs", 2), |sample| sample.p50_us),
        (Column::median("p99_us", "p99 µs", 2), |sample| sample.p99_us),
        (Column::new("per_second", "per second"), |sample| sample.per_second),
        (Column::median("client_cores", "client\ncores", 2), |it| it.cores.client),
        (Column::median("server_cores", "server\ncores", 2), |it| it.cores.server),
    ];
    let lead = vec![Column::new("load", "load"), Column::new("preset", "preset")];
    let rows = lines.iter().map(|Sampled { subject: (load, preset), samples }| {
        (vec![load.to_string().into(), preset.to_string().into()], &samples[..])
    });
    Table::of_samples("Calls and messages", lead, &figures, rows)
}

/// Returns the ratios of the rates of the other presets to that of the first under the same load, which is in a column
/// of the name `load`.
pub(super) fn table_of_ratios<L: fmt::Display + PartialEq, S>(
    load: &'static str,
    lines: &[Sampled<(L, Preset), S>],
    per_second: fn(&S) -> f64,
) -> Table {
    let lead = vec![Column::new(load, load), Column::new("preset", "preset"), Column::new("over", "over")];
    let mut table = Table::of_ratios("Rates compared with the first preset", lead, "times better");
    for Sampled { subject: (load, preset), samples } in lines {
        let Some(first) = lines.iter().find(|first| first.subject.0 == *load) else { continue };
        if first.subject.1 != *preset {
            let lead = [load.to_string(), preset.to_string(), first.subject.1.to_string()];
            table.push_ratio(lead.map(Into::into).into(), samples, &first.samples, per_second);
        }
    }
    table
}
