//! What the verbs of a provider can do, beside the bare limit and UCX, interleaved.

use super::limits::find_ucx;
use super::stage::{Progress, Stage};
use crate::baseline::{self, Baseline, BaselineResult};
use crate::measure::Spread;
use crate::report::{Cell, Column, ONE_RNIC_NOTICE, Report, Table};
use crate::rnic::{self, RnicError, RnicResult, RnicTask, RnicTest};
use crate::ucx::{Ucx, UcxResult, UcxTest};
use farcall_providers::{Chosen, Wish};

/// Which verbs to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbs {
    /// WRITE only.
    Write,
    /// READ only.
    Read,
    /// SEND only.
    Send,
    /// All three.
    All,
}

/// Sizes at which latencies are taken unless others are asked for; 8 bytes is what UCX's put latency uses.
const LATENCY_LENS_BYTES: [usize; 4] = [8, 64, 1024, 4096];
/// Size at which message rates are taken.
const RATE_LEN_BYTES: usize = 64;
/// Sizes at which bandwidths are taken.
const BANDWIDTH_LENS_BYTES: [usize; 3] = [4096, 65_536, 1 << 20];

/// One line of the table and everything measured for it.
#[derive(Debug)]
enum Line {
    Ours(RnicTask, Vec<RnicResult>),
    Bare(Vec<BaselineResult>),
    Ucx(UcxTest, Vec<UcxResult>),
}

/// Measures `verbs` at `lens_bytes` (or the default sizes if empty), with UCX beside them if `with_ucx`.
///
/// # Errors
/// When a measurement of ours fails. UCX failing is a note.
pub fn run(
    chosen: &Chosen,
    stage: &Stage,
    verbs: Verbs,
    lens_bytes: &[usize],
    with_ucx: bool,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let mut conditions = stage.conditions();
    conditions.push("provider", chosen.provider.name());
    conditions.push("because", chosen.explanation.clone());
    conditions.push("threads", "one process with one thread at each end, RC, polling");
    let mut report = Report::new("Verbs between two processes", conditions);
    if chosen.selection.wish == Wish::Ibv {
        report.notes = vec![ONE_RNIC_NOTICE.to_owned()];
    }
    report.notes.extend(stage.single_core_note());
    let ucx = if with_ucx { find_ucx(&mut report) } else { None };
    let mut lines = lines(verbs, lens_bytes, ucx.is_some());
    for repetition in 1..=stage.repetitions {
        for line in &mut lines {
            if !progress(&format!("{} ({repetition} of {})", line.title(), stage.repetitions)) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            if let Err(note) = line.measure(chosen, stage, ucx.as_ref())? {
                report.notes.push(note);
            }
        }
    }
    report.tables.push(table(&lines));
    Ok(report)
}

fn lines(verbs: Verbs, lens_bytes: &[usize], with_ucx: bool) -> Vec<Line> {
    use RnicTest::{
        ReadBandwidth, ReadLatency, SendLatency, SendRate, WriteBandwidth, WriteLatency, WriteRate,
    };
    let chosen: &[RnicTest] = match verbs {
        Verbs::Write => &[WriteLatency, WriteRate, WriteBandwidth],
        Verbs::Read => &[ReadLatency, ReadBandwidth],
        Verbs::Send => &[SendLatency, SendRate],
        Verbs::All => {
            &[WriteLatency, ReadLatency, SendLatency, WriteRate, SendRate, WriteBandwidth, ReadBandwidth]
        }
    };
    let mut lines = vec![Line::Bare(Vec::new())];
    for test in chosen {
        let lens: &[usize] = match test {
            SendRate | WriteRate => &[RATE_LEN_BYTES],
            _ if !lens_bytes.is_empty() => lens_bytes,
            WriteBandwidth | ReadBandwidth => &BANDWIDTH_LENS_BYTES,
            _ => &LATENCY_LENS_BYTES,
        };
        lines
            .extend(lens.iter().map(|len| Line::Ours(RnicTask { test: *test, len_bytes: *len }, Vec::new())));
    }
    if with_ucx {
        lines.extend(UcxTest::ALL.map(|test| Line::Ucx(test, Vec::new())));
    }
    lines
}

impl Line {
    fn title(&self) -> String {
        match self {
            Self::Ours(task, _) => format!("{}, {} B", task.test, task.len_bytes),
            Self::Bare(_) => Baseline::SharedMemory.title().to_owned(),
            Self::Ucx(test, _) => test.to_string(),
        }
    }

    /// Takes one measurement; the inner error is a note about UCX.
    fn measure(
        &mut self,
        chosen: &Chosen,
        stage: &Stage,
        ucx: Option<&Ucx>,
    ) -> Result<Result<(), String>, RnicError> {
        match self {
            Self::Ours(task, results) => results.push(rnic::measure(chosen, *task, &stage.baseline_plan())?),
            Self::Bare(results) => {
                results.push(baseline::measure(Baseline::SharedMemory, &stage.baseline_plan())?);
            }
            Self::Ucx(test, results) => {
                let Some(ucx) = ucx else { return Ok(Ok(())) };
                match ucx.run(*test, stage.server_core, stage.client_core) {
                    Ok(result) => results.push(result),
                    Err(error) => return Ok(Err(error.to_string())),
                }
            }
        }
        Ok(Ok(()))
    }

    fn row(&self) -> Vec<Cell> {
        let mut row: Vec<Cell> = vec![self.title().into()];
        row.extend(match self {
            Self::Ours(task, results) => {
                // Ping-pongs carry one message each way.
                let ways = if task.test == RnicTest::ReadLatency { 1.0 } else { 2.0 };
                let latency = |figure: &dyn Fn(&RnicResult) -> f64| -> Cell {
                    task.test.is_latency().then(|| Spread::of(results.iter().map(figure))).flatten().into()
                };
                [
                    latency(&|result| result.round_trips.latency.p50_ns as f64 / 1e3 / ways),
                    latency(&|result| 1e6 / result.round_trips.per_second / ways),
                    latency(&|result| result.round_trips.latency.p99_ns as f64 / 1e3 / ways),
                    Spread::of(results.iter().map(|result| result.messages_per_second)).into(),
                    Spread::of(results.iter().map(|result| result.bytes_per_second() / 1e9)).into(),
                ]
            }
            Self::Bare(results) => {
                let spread = |figure: &dyn Fn(&BaselineResult) -> f64| Spread::of(results.iter().map(figure));
                [
                    spread(&|result| result.round_trips.latency.p50_ns as f64 / 2e3).into(),
                    spread(&|result| 1e6 / result.round_trips.per_second / 2.0).into(),
                    spread(&|result| result.round_trips.latency.p99_ns as f64 / 2e3).into(),
                    spread(&|result| result.round_trips.per_second * 2.0).into(),
                    Cell::None,
                ]
            }
            Self::Ucx(test, results) => {
                let is_latency = matches!(test, UcxTest::PutLatency | UcxTest::AmLatency);
                let spread = |figure: &dyn Fn(&UcxResult) -> f64| Spread::of(results.iter().map(figure));
                let latency = |figure: &dyn Fn(&UcxResult) -> f64| -> Cell {
                    is_latency.then(|| spread(figure)).flatten().into()
                };
                [
                    latency(&|result| result.median_us),
                    latency(&|result| result.mean_us),
                    Cell::None,
                    spread(&|result| result.messages_per_second).into(),
                    spread(&|result| result.mib_per_second * 1_048_576.0 / 1e9).into(),
                ]
            }
        });
        row
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Latencies are one way (half a ping-pong); of a READ, the whole operation",
        vec![
            Column::new("what", "what"),
            Column::with_decimals("p50_us", "p50 µs", 3),
            Column::with_decimals("mean_us", "mean µs", 3),
            Column::with_decimals("p99_us", "p99 µs", 3),
            Column::new("messages_per_second", "messages/s"),
            Column::with_decimals("gb_per_second", "GB/s", 2),
        ],
    );
    for line in lines {
        table.push(line.row());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_asked_for_replace_the_defaults_except_for_rates() {
        let titles: Vec<String> = lines(Verbs::Write, &[7], false).iter().map(Line::title).collect();
        assert_eq!(
            titles[1..],
            ["WRITE ping-pong, 7 B", "WRITE rate, chained, 64 B", "WRITE bandwidth, 7 B"]
        );
        assert!(
            lines(Verbs::All, &[], true).iter().any(|line| matches!(line, Line::Ucx(UcxTest::PutLatency, _)))
        );
    }
}
