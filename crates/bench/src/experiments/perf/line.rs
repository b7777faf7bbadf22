//! One line of the table and everything measured for it.

use super::super::stage::Stage;
use crate::baseline::{self, Baseline, BaselineResult};
use crate::measure::{LatencySummary, Spread};
use crate::report::{Cell, Column, Table};
use crate::rnic::{self, RnicError, RnicResult, RnicTask, RnicTest};
use crate::ucx::{Ucx, UcxResult, UcxTest};
use farcall_providers::Chosen;

#[derive(Debug)]
pub(super) enum Line {
    Ours(RnicTask, Vec<RnicResult>),
    Bare(Vec<BaselineResult>),
    Ucx(UcxTest, Vec<UcxResult>),
}

impl Line {
    pub(super) fn title(&self) -> String {
        match self {
            Self::Ours(task, _) => format!("{task}, {} B", task.len_bytes),
            Self::Bare(_) => Baseline::SharedMemory.title().to_owned(),
            Self::Ucx(test, _) => test.to_string(),
        }
    }

    /// Takes one measurement; returns a note if there is something to say.
    pub(super) fn measure(
        &mut self,
        chosen: &Chosen,
        stage: &Stage,
        ucx: Option<&Ucx>,
    ) -> Result<Option<String>, RnicError> {
        match self {
            Self::Ours(task, results) => match rnic::measure(chosen, *task, &stage.baseline_plan()) {
                Ok(result) => results.push(result),
                Err(error @ RnicError::NotInOrder) if !task.is_unreliable() => {
                    // What can be had instead, from now on.
                    task.test = RnicTest::Completion;
                    results.push(rnic::measure(chosen, *task, &stage.baseline_plan())?);
                    return Ok(Some(format!("{}: {error}. Measured until its completion.", task.operation)));
                }
                Err(error @ (RnicError::NotInOrder | RnicError::Silence(_))) => {
                    return Ok(Some(format!("{}: {error}.", self.title())));
                }
                Err(error) => return Err(error),
            },
            Self::Bare(results) => {
                results.push(baseline::measure(Baseline::SharedMemory, &stage.baseline_plan())?);
            }
            Self::Ucx(test, results) => {
                let Some(ucx) = ucx else { return Ok(None) };
                match ucx.run(*test, stage.server_core, stage.client_core) {
                    Ok(result) => results.push(result),
                    Err(error) => return Ok(Some(error.to_string())),
                }
            }
        }
        Ok(None)
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = vec![self.title().into()];
        match self {
            Self::Ours(task, results) => cells.extend(ours(task, results)),
            Self::Bare(results) => cells.extend(bare(results)),
            Self::Ucx(test, results) => cells.extend(theirs(*test, results)),
        }
        cells
    }
}

/// All figures of all lines.
pub(super) fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Latencies are one way (half a ping-pong), or the whole operation where it says “until completion”",
        vec![
            Column::new("what", "what"),
            Column::json_only("operation"),
            Column::json_only("transport"),
            Column::json_only("len_bytes"),
            Column::with_decimals("p50_us", "p50 µs", 3),
            Column::with_decimals("mean_us", "mean µs", 3),
            Column::with_decimals("p99_us", "p99 µs", 3).median_only(),
            Column::with_decimals("p999_us", "p99.9 µs", 2).median_only(),
            Column::new("messages_per_second", "messages/s"),
            Column::with_decimals("gb_per_second", "GB/s", 3),
            Column::with_decimals("lost_percent", "lost %", 1).median_only(),
            Column::with_decimals("client_cores", "cores client", 2).median_only(),
            Column::with_decimals("server_cores", "server", 2).median_only(),
            Column::new("samples", "samples").median_only(),
        ],
    );
    for line in lines {
        table.push(line.cells());
    }
    table
}

fn ours(task: &RnicTask, results: &[RnicResult]) -> Vec<Cell> {
    let spread =
        |figure: &dyn Fn(&RnicResult) -> f64| -> Cell { Spread::of(results.iter().map(figure)).into() };
    let latency = |figure_ns: fn(&LatencySummary) -> f64| -> Cell {
        spread(&|result| result.one_way_us(figure_ns).unwrap_or(f64::NAN))
    };
    let lost = |result: &RnicResult| 100.0 * result.lost as f64 / result.sent.max(1) as f64;
    vec![
        task.operation.to_string().into(),
        task.transport.to_string().into(),
        (task.len_bytes as u64).into(),
        latency(|summary| summary.p50_ns as f64),
        latency(|summary| summary.mean_ns),
        latency(|summary| summary.p99_ns as f64),
        latency(|summary| summary.p999_ns as f64),
        spread(&|result| result.messages_per_second),
        spread(&|result| result.bytes_per_second() / 1e9),
        if task.is_unreliable() && task.operation.consumes_receive() { spread(&lost) } else { Cell::None },
        spread(&|result| result.cores.client),
        spread(&|result| result.cores.server),
        spread(&|result| result.samples as f64),
    ]
}

fn bare(results: &[BaselineResult]) -> Vec<Cell> {
    let spread =
        |figure: &dyn Fn(&BaselineResult) -> f64| -> Cell { Spread::of(results.iter().map(figure)).into() };
    vec![
        Cell::None,
        Cell::None,
        (baseline::PAYLOAD_LEN_BYTES as u64).into(),
        spread(&|result| result.round_trips.latency.p50_ns as f64 / 2e3),
        spread(&|result| result.round_trips.latency.mean_ns / 2e3),
        spread(&|result| result.round_trips.latency.p99_ns as f64 / 2e3),
        spread(&|result| result.round_trips.latency.p999_ns as f64 / 2e3),
        spread(&|result| result.round_trips.per_second * 2.0),
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::None,
        spread(&|result| result.round_trips.count as f64),
    ]
}

fn theirs(test: UcxTest, results: &[UcxResult]) -> Vec<Cell> {
    let is_latency = matches!(test, UcxTest::PutLatency | UcxTest::AmLatency);
    let spread =
        |figure: &dyn Fn(&UcxResult) -> f64| -> Cell { Spread::of(results.iter().map(figure)).into() };
    let latency = |figure: &dyn Fn(&UcxResult) -> f64| if is_latency { spread(figure) } else { Cell::None };
    vec![
        Cell::None,
        Cell::None,
        (test.message_len_bytes() as u64).into(),
        latency(&|result| result.median_us),
        latency(&|result| result.mean_us),
        Cell::None,
        Cell::None,
        spread(&|result| result.messages_per_second),
        spread(&|result| result.mib_per_second * 1_048_576.0 / 1e9),
        Cell::None,
        Cell::None,
        Cell::None,
        spread(&|result| result.iterations as f64),
    ]
}
