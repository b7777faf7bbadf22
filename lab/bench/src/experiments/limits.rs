//! Limits of this machine without Farcall, and UCX over shared memory, interleaved.

use super::env::{ExperimentEnv, Progress, Sampled};
use super::subject::{Rival, Sample};
use crate::baseline::Baseline;
use crate::peer::PeerError;
use crate::report::{Column, Figure, Report, Table};
use crate::ucx::{Ucx, UcxTest};
use farcall_verbs::with_sources;

/// Measures all limits, and UCX in addition if `with_ucx`. A missing UCX is a note, not a failure.
///
/// # Errors
/// Returns an error if a limit cannot be measured.
pub fn run(env: &ExperimentEnv, with_ucx: bool, progress: Progress<'_>) -> Result<Report, PeerError> {
    let mut report = Report::new("Bare limits of this machine", env.conditions());
    report.notes.extend(env.single_core_note());
    let ucx = find_ucx(with_ucx, &mut report);
    let tests = ucx.iter().flat_map(|_| UcxTest::ALL.map(Rival::Ucx));
    let subjects = Baseline::ALL.into_iter().map(Rival::Bare).chain(tests);
    let lines = env.sample(subjects, &mut report, progress, Rival::to_string, |rival, _, report| {
        rival.measure(env, ucx.as_ref(), report)
    })?;
    let (limits, rivals) = lines.split_at(Baseline::ALL.len());
    report.tables.push(table("Limits, round trips (bandwidth: copies)", "limit", &limit_figures(), limits));
    if ucx.is_some() {
        let title = "UCX; latencies one way, as UCX reports them";
        report.tables.push(table(title, "test", &ucx_figures(), rivals));
    }
    Ok(report)
}

/// Searches for UCX if `is_wanted`; adds the reason to the notes if it is not usable.
pub(super) fn find_ucx(is_wanted: bool, report: &mut Report) -> Option<Ucx> {
    let found = is_wanted.then(Ucx::find)?;
    match &found {
        Ok(ucx) => report.conditions.push("ucx", format!("{} over POSIX shared memory (UCT)", ucx.version)),
        Err(error) => report.note(with_sources(&error)),
    }
    found.ok()
}

fn limit_figures() -> [Figure<Sample>; 4] {
    [
        (Column::with_decimals("p50_us", "p50 µs", 2), |sample| sample.p50_us),
        (Column::with_decimals("p99_us", "p99 µs", 2), |sample| sample.p99_us),
        (Column::new("per_second", "per second"), |sample| sample.per_second),
        (Column::with_decimals("gb_per_second", "GB/s", 1), |sample| sample.bytes_per_second / 1e9),
    ]
}

fn ucx_figures() -> [Figure<Sample>; 3] {
    [
        (Column::with_decimals("one_way_p50_us", "one way p50 µs", 3), |sample| sample.p50_us),
        (Column::new("messages_per_second", "messages/s"), |sample| sample.per_second),
        (Column::with_decimals("gb_per_second", "GB/s", 1), |sample| sample.bytes_per_second / 1e9),
    ]
}

fn table(
    title: &str,
    heading: &'static str,
    figures: &[Figure<Sample>],
    lines: &[Sampled<Rival, Sample>],
) -> Table {
    let rows = lines.iter().map(|line| (vec![line.subject.to_string().into()], &line.samples[..]));
    Table::of_samples(title, vec![Column::new(heading, heading)], figures, rows)
}
