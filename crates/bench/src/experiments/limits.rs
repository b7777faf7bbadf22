//! The bare limits of this machine, and UCX over shared memory, interleaved.

use super::stage::{Progress, Stage};
use crate::baseline::{self, Baseline, BaselineResult, PeerError};
use crate::measure::Spread;
use crate::report::{Cell, Column, Report, Table};
use crate::ucx::{Ucx, UcxError, UcxResult, UcxTest};

/// Measures all limits, and UCX beside them if `with_ucx`. A missing UCX is a note, not a failure.
///
/// # Errors
/// When a limit cannot be measured.
pub fn run(stage: &Stage, with_ucx: bool, progress: Progress<'_>) -> Result<Report, PeerError> {
    let mut report = Report::new("Bare limits of this machine", stage.conditions());
    report.notes.extend(stage.single_core_note());
    let ucx = if with_ucx { find_ucx(&mut report) } else { None };
    let mut limits: Vec<Vec<BaselineResult>> = vec![Vec::new(); Baseline::ALL.len()];
    let mut rivals: Vec<Vec<UcxResult>> = vec![Vec::new(); UcxTest::ALL.len()];
    for repetition in 1..=stage.repetitions {
        let mut go_on = |what: &str| progress(&format!("{what} ({repetition} of {})", stage.repetitions));
        for (baseline, results) in Baseline::ALL.into_iter().zip(&mut limits) {
            if !go_on(baseline.title()) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            results.push(baseline::measure(baseline, &stage.baseline_plan())?);
        }
        let Some(ucx) = &ucx else { continue };
        for (test, results) in UcxTest::ALL.into_iter().zip(&mut rivals) {
            if !go_on(&test.to_string()) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            match ucx.run(test, stage.server_core, stage.client_core) {
                Ok(result) => results.push(result),
                Err(error) => report.notes.push(error.to_string()),
            }
        }
    }
    report.tables.push(limits_table(&limits));
    if ucx.is_some() {
        report.tables.push(ucx_table(&rivals));
    }
    Ok(report)
}

/// Looks for UCX; what hinders goes into the notes.
pub(super) fn find_ucx(report: &mut Report) -> Option<Ucx> {
    match Ucx::find() {
        Ok(ucx) => {
            report.conditions.push("ucx", format!("{} over POSIX shared memory (UCT)", ucx.version));
            Some(ucx)
        }
        Err(error @ (UcxError::Absent | UcxError::NoSharedMemory)) => {
            report.notes.push(error.to_string());
            None
        }
        Err(error) => {
            report.notes.push(format!("no comparison with UCX: {error}"));
            None
        }
    }
}

fn limits_table(limits: &[Vec<BaselineResult>]) -> Table {
    let mut table = Table::new(
        "Limits, round trips (bandwidth: copies)",
        vec![
            Column::new("limit", "limit"),
            Column::with_decimals("p50_us", "p50 µs", 2),
            Column::with_decimals("p99_us", "p99 µs", 2),
            Column::new("per_second", "per second"),
            Column::with_decimals("gb_per_second", "GB/s", 1),
        ],
    );
    for results in limits {
        let Some(first) = results.first() else { continue };
        let spread = |figure: &dyn Fn(&BaselineResult) -> f64| Spread::of(results.iter().map(figure));
        table.push(vec![
            first.baseline.title().into(),
            spread(&|result| result.round_trips.latency.p50_ns as f64 / 1e3).into(),
            spread(&|result| result.round_trips.latency.p99_ns as f64 / 1e3).into(),
            spread(&|result| result.round_trips.per_second).into(),
            first
                .bytes_per_second
                .and_then(|_| spread(&|result| result.bytes_per_second.unwrap_or(f64::NAN) / 1e9))
                .into(),
        ]);
    }
    table
}

fn ucx_table(rivals: &[Vec<UcxResult>]) -> Table {
    let mut table = Table::new(
        "UCX; latencies one way, as UCX reports them",
        vec![
            Column::new("test", "test"),
            Column::with_decimals("one_way_p50_us", "one way p50 µs", 3),
            Column::new("messages_per_second", "messages/s"),
            Column::with_decimals("gb_per_second", "GB/s", 1),
        ],
    );
    for (test, results) in UcxTest::ALL.into_iter().zip(rivals) {
        let spread = |figure: &dyn Fn(&UcxResult) -> f64| Spread::of(results.iter().map(figure));
        let is_latency = matches!(test, UcxTest::PutLatency | UcxTest::AmLatency);
        let latency: Cell = is_latency.then(|| spread(&|result| result.median_us)).flatten().into();
        table.push(vec![
            test.to_string().into(),
            latency,
            spread(&|result| result.messages_per_second).into(),
            spread(&|result| result.mib_per_second * 1_048_576.0 / 1e9).into(),
        ]);
    }
    table
}
