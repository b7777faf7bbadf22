//! Wait strategies of RR-Compound at a server of many streams, compared under one load.

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress, Sampled};
use crate::report::{Column, Figure, Report, Table};
use crate::streams::{self, Load, Served, WaitMode};
use farcall::select::SelectedNic;

/// Plan of the experiment.
pub struct WaitsPlan {
    /// Durations, repetitions.
    pub env: ExperimentEnv,
    /// The RNIC of both ends.
    pub chosen: SelectedNic,
    /// Wait strategies, interleaved.
    pub modes: Vec<WaitMode>,
    /// Load of all strategies.
    pub load: Load,
}

type Line = Sampled<WaitMode, Served>;

const NOTES: [&str; 3] = [
    "The server has one worker (BP: one for each client); each client is a thread of the other process that sends 64 B, \
     waits for the same back, and pauses. Every byte is checked.",
    "Clients of TCP and EVENT sleep until they are answered; the others poll for about a round trip first, as BPEV does.",
    "Idle CPU: of both processes together, while all streams are open and idle.",
];

/// Measures the strategies in turn.
///
/// # Errors
/// Returns an error if the first one cannot be measured.
pub fn run(plan: &WaitsPlan, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    let WaitsPlan { env, chosen, modes, load } = plan;
    let mut conditions = env.conditions();
    conditions.replace("pinning", "none: pollers, workers and clients run on all cores");
    conditions.push("provider", format!("{} (RC)", chosen.selection.provider));
    conditions.push("clients", load.clients.to_string());
    conditions.push("interval", format!("{} µs", load.interval.as_micros()));
    conditions.push("pollers (BPEV)", load.pollers.to_string());
    let measured = || "as measured".to_owned();
    conditions.push("bp_timeout (BPEV)", load.bp_timeout_us.map_or_else(measured, |us| format!("{us} µs")));
    let mut report = env.report("Ways of waiting for byte streams", conditions, chosen.selection.provider);
    let lines = env.sample(modes.clone(), &mut report, progress, WaitMode::to_string, |mode, _, _| {
        Ok::<_, ExperimentError>(Some(streams::serve(*mode, *load, chosen, &env.pair_plan())?))
    })?;
    report.tables.push(table_of_modes(&lines));
    report.tables.push(table_of_ratios(&lines));
    report.notes.extend(NOTES.map(str::to_owned));
    Ok(report)
}

fn p50_us(served: &Served) -> f64 {
    served.latencies.summary().p50_ns as f64 / 1e3
}

fn table_of_modes(lines: &[Line]) -> Table {
    let figures: [Figure<Served>; 6] = [
        (Column::with_decimals("p50_us", "p50 µs", 1), p50_us),
        (Column::median("p99_us", "p99 µs", 1), |served| served.latencies.summary().p99_ns as f64 / 1e3),
        (Column::new("per_second", "answers/s"), |served| served.per_second),
        (Column::median("server_cores", "server\ncores", 3), |served| served.cores.server),
        (Column::median("client_cores", "client\ncores", 3), |served| served.cores.client),
        (Column::median("idle_percent", "idle CPU\n%", 2), |served| served.idle_cores * 100.0),
    ];
    let rows = lines.iter().map(|line| (vec![line.subject.to_string().into()], &line.samples[..]));
    Table::of_samples("Each way", vec![Column::new("way", "way")], &figures, rows)
}

/// Returns the ratios of BPEV to each of the others, computed within each repetition.
fn table_of_ratios(lines: &[Line]) -> Table {
    let lead = vec![Column::new("figure", "BPEV's figure"), Column::new("over", "over that of")];
    let mut table =
        Table::of_ratios("Ratios, and between which bounds their true medians lie", lead, "ratio");
    let Some(bpev) = lines.iter().find(|line| line.subject == WaitMode::Bpev) else { return table };
    let per_second = |served: &Served| served.per_second;
    let figures = [("p50", p50_us as fn(&Served) -> f64), ("answers/s", per_second)];
    for other in lines.iter().filter(|line| line.subject != WaitMode::Bpev) {
        for (name, figure) in figures {
            let lead = vec![name.into(), other.subject.to_string().into()];
            table.push_ratio(lead, &bpev.samples, &other.samples, figure);
        }
    }
    table
}
