//! Wait strategies of RR-Compound at a server of many streams, compared under one load.

use super::ExperimentError;
use super::stage::{Progress, Stage};
use crate::measure::PairedRatio;
use crate::report::{Column, Figure, Report, Table};
use crate::streams::{self, Load, Served, Way};
use farcall::select::SelectedNic;

/// Plan of the experiment.
pub struct WaitsPlan {
    /// Durations, repetitions.
    pub stage: Stage,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Wait strategies, interleaved.
    pub ways: Vec<Way>,
    /// Load of all strategies.
    pub load: Load,
}

struct Line {
    way: Way,
    served: Vec<Served>,
}

const NOTES: [&str; 3] = [
    "The server has one worker (BP: one for each client); each client is a thread of the other process that sends 64 B, \
     waits for the same back, and pauses. Every byte is checked.",
    "Clients of TCP and EVENT sleep until they are answered; the others look for about a round trip first, as BPEV does.",
    "Idle CPU: of both processes together, while all streams are open and nobody sends.",
];

/// Measures the strategies in turn.
///
/// # Errors
/// Returns an error if the first one cannot be measured.
pub fn run(plan: &WaitsPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let WaitsPlan { stage, chosen, ways, load } = plan;
    let mut conditions = stage.conditions();
    conditions.replace("pinning", "none: pollers, workers and clients run on all cores");
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("clients", load.clients.to_string());
    conditions.push("interval", format!("{} µs", load.interval.as_micros()));
    conditions.push("pollers (BPEV)", load.pollers.to_string());
    let measured = || "as measured".to_owned();
    conditions.push("bp_timeout (BPEV)", load.bp_timeout_us.map_or_else(measured, |us| format!("{us} µs")));
    let mut report =
        Report::new("Ways of waiting for byte streams", conditions).over(chosen.selection.provider);
    report.notes.extend(stage.single_core_note());
    let mut lines: Vec<_> = ways.iter().map(|way| Line { way: *way, served: Vec::new() }).collect();
    let title = |line: &Line| line.way.to_string();
    stage.interleave(&mut lines, &mut report, progress, title, |line, _, _| {
        line.served.push(streams::serve(line.way, *load, chosen, &stage.pair_plan())?);
        Ok::<(), ExperimentError>(())
    })?;
    report.tables.push(table_of_ways(&lines));
    report.tables.push(table_of_ratios(&lines));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(report)
}

fn p50_us(served: &Served) -> f64 {
    served.latencies.summary().p50_ns as f64 / 1e3
}

fn table_of_ways(lines: &[Line]) -> Table {
    let figures: [Figure<Served>; 6] = [
        (Column::with_decimals("p50_us", "p50 µs", 1), p50_us),
        (Column::with_decimals("p99_us", "p99 µs", 1).median_only(), |served| {
            served.latencies.summary().p99_ns as f64 / 1e3
        }),
        (Column::new("per_second", "answers/s"), |served| served.per_second),
        (Column::with_decimals("server_cores", "server\ncores", 3).median_only(), |served| served.cores[0]),
        (Column::with_decimals("client_cores", "client\ncores", 3).median_only(), |served| served.cores[1]),
        (Column::with_decimals("idle_percent", "idle CPU\n%", 2).median_only(), |served| {
            served.idle_cores * 100.0
        }),
    ];
    let mut table = Table::of_figures("Each way", vec![Column::new("way", "way")], &figures);
    for line in lines {
        table.push_figures(vec![line.way.to_string().into()], &figures, &line.served);
    }
    table
}

/// Returns the ratios of BPEV to each of the others, computed within each repetition.
fn table_of_ratios(lines: &[Line]) -> Table {
    let columns = vec![
        Column::new("figure", "BPEV's figure"),
        Column::new("over", "over that of"),
        Column::with_decimals("ratio", "ratio", 2),
        Column::with_decimals("low", "low", 2),
        Column::with_decimals("high", "high", 2),
        Column::with_decimals("confidence_percent", "% sure", 1),
    ];
    let mut table = Table::new("Ratios, and between which bounds their true medians lie", columns);
    let Some(bpev) = lines.iter().find(|line| line.way == Way::Bpev) else { return table };
    let per_second = |served: &Served| served.per_second;
    let figures = [("p50", p50_us as fn(&Served) -> f64), ("answers/s", per_second)];
    for other in lines.iter().filter(|line| line.way != Way::Bpev) {
        for (name, figure) in figures {
            let pairs = bpev.served.iter().map(figure).zip(other.served.iter().map(figure));
            if let Some(ratio) = PairedRatio::of(pairs) {
                let bounds = [ratio.median, ratio.low, ratio.high, ratio.confidence_percent].map(Into::into);
                let lead = [name.into(), other.way.to_string().into()];
                table.push(lead.into_iter().chain(bounds).collect());
            }
        }
    }
    table
}
