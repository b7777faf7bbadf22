//! What connected queue pairs cost that share one completion queue at each end.
//!
//! Messages go over queue pairs in turn: over all of them, or over the first few while the others are only connected. The
//! same work over 16 queue pairs is the reference; the ratio is taken within a repetition. Each figure is taken between two
//! new processes: in one that has made and dropped a thousand pairs before, the next thousand lie in pieces of memory, and
//! cost more.

use super::perf::new_report;
use super::stage::{Progress, Stage};
use crate::measure::{LatencySummary, Spread};
use crate::report::{Cell, Column, Report, Table};
use crate::rnic::{self, Operation, RnicError, RnicResult, RnicTask, RnicTest, Survey, Tuning};
use farcall_link::Transport;
use farcall_providers::Chosen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number that others are compared with.
pub const REFERENCE_QPS: u32 = 16;

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpsPlan {
    /// Numbers of connected queue pairs.
    pub counts: Vec<u32>,
    /// What travels.
    pub operation: Operation,
    /// Over which transport.
    pub transport: Transport,
    /// Bytes of each message.
    pub len_bytes: usize,
    /// Requests outstanding on each queue pair that carries messages.
    pub window: u32,
}

/// A number of queue pairs and everything measured for it.
struct Line {
    qps: u32,
    active_qps: u32,
    rates: Vec<RnicResult>,
    latencies: Vec<RnicResult>,
}

/// Measures.
///
/// # Errors
/// When the plan makes no sense, or a measurement fails.
pub fn run(
    chosen: &Chosen,
    stage: &Stage,
    plan: &QpsPlan,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&*chosen.provider)?;
    let mut lines = plan.lines();
    for line in &lines {
        for task in [plan.rate(line), plan.latency(line)] {
            task.check()?;
            task.check_device(&survey.attr, &survey.port.attr)?;
        }
    }
    let mut report = new_report("Many queue pairs through one completion queue", chosen, stage, &survey);
    report.conditions.push(
        "measures",
        format!(
            "{} {} of {} B, over queue pairs in turn, {} outstanding on each; the time per message is that of the slower end",
            plan.transport, plan.operation, plan.len_bytes, plan.window
        ),
    );
    raise_descriptor_limit();
    for repetition in 1..=stage.repetitions {
        for line in &mut lines {
            if !progress(&format!("{} ({repetition} of {})", line.title(), stage.repetitions)) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            line.rates.push(rnic::measure_apart(chosen, plan.rate(line), &stage.baseline_plan())?);
            line.latencies.push(rnic::measure_apart(chosen, plan.latency(line), &stage.baseline_plan())?);
        }
    }
    report.tables.push(table(&lines));
    Ok(report)
}

impl QpsPlan {
    /// Each number with all active; those above the reference also with as many active as that.
    fn lines(&self) -> Vec<Line> {
        let line = |qps, active_qps| Line { qps, active_qps, rates: Vec::new(), latencies: Vec::new() };
        let mut counts = self.counts.clone();
        counts.push(REFERENCE_QPS);
        counts.sort_unstable();
        counts.dedup();
        let all = counts.iter().map(|qps| line(*qps, *qps));
        let few = counts.iter().filter(|qps| **qps > REFERENCE_QPS).map(|qps| line(*qps, REFERENCE_QPS));
        all.chain(few).collect()
    }

    fn rate(&self, line: &Line) -> RnicTask {
        let tuning = Tuning { window: self.window, chain: 1, signal_every: self.window, ..self.tuning(line) };
        self.task(RnicTest::Throughput, tuning)
    }

    fn latency(&self, line: &Line) -> RnicTask {
        RnicTask::latency(self.operation, self.transport, self.len_bytes, self.tuning(line))
    }

    fn tuning(&self, line: &Line) -> Tuning {
        Tuning { qps: line.qps, active_qps: line.active_qps, ..Tuning::LATENCY }
    }

    fn task(&self, test: RnicTest, tuning: Tuning) -> RnicTask {
        let Self { operation, transport, len_bytes, .. } = *self;
        RnicTask { operation, transport, test, len_bytes, tuning }
    }
}

impl Line {
    fn title(&self) -> String {
        format!("{} queue pairs, {} active", self.qps, self.active_qps)
    }

    fn is_reference(&self) -> bool {
        self.qps == REFERENCE_QPS
    }
}

fn ns_per_message(result: &RnicResult) -> f64 {
    1e9 / result.messages_per_second
}

fn median_us(result: &RnicResult) -> f64 {
    let median = |summary: &LatencySummary| summary.p50_ns as f64;
    result.one_way_us(median).unwrap_or(f64::NAN)
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Throughput, and one message at a time (one way); ratios to the line of 16",
        vec![
            Column::new("qps", "queue pairs"),
            Column::new("active_qps", "active"),
            Column::new("messages_per_second", "messages/s"),
            Column::with_decimals("ns_per_message", "ns/message", 1),
            Column::with_decimals("ratio_of_time", "× of 16", 2),
            Column::with_decimals("p50_us", "p50 µs", 3),
            Column::with_decimals("ratio_of_latency", "× of 16", 2),
            Column::with_decimals("lost_percent", "lost %", 1).median_only(),
            Column::with_decimals("client_cores", "cores client", 2).median_only(),
            Column::with_decimals("server_cores", "server", 2).median_only(),
        ],
    );
    let reference = lines.iter().find(|line| line.is_reference());
    for line in lines {
        let rates = |figure: &dyn Fn(&RnicResult) -> f64| -> Cell {
            Spread::of(line.rates.iter().map(figure)).into()
        };
        let (times, latencies) = match reference {
            Some(reference) => (
                ratios(&line.rates, &reference.rates, ns_per_message),
                ratios(&line.latencies, &reference.latencies, median_us),
            ),
            None => (Cell::None, Cell::None),
        };
        table.push(vec![
            u64::from(line.qps).into(),
            u64::from(line.active_qps).into(),
            rates(&|result| result.messages_per_second),
            rates(&ns_per_message),
            times,
            Spread::of(line.latencies.iter().map(median_us)).into(),
            latencies,
            rates(&|result| 100.0 * result.lost as f64 / result.sent.max(1) as f64),
            rates(&|result| result.cores.client),
            rates(&|result| result.cores.server),
        ]);
    }
    table
}

/// Figures over those of the reference in the same repetition.
fn ratios(results: &[RnicResult], reference: &[RnicResult], figure: impl Fn(&RnicResult) -> f64) -> Cell {
    Spread::of(results.iter().zip(reference).map(|(result, reference)| figure(result) / figure(reference)))
        .into()
}

/// Queue pairs may need descriptors; this process and its peers may have as many as the system allows.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without it, whatever runs out of descriptors says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_providers::Selection;
    use std::time::Duration;

    fn plan(counts: &[u32]) -> QpsPlan {
        QpsPlan {
            counts: counts.to_vec(),
            operation: Operation::Send,
            transport: Transport::Rc,
            len_bytes: 64,
            window: 4,
        }
    }

    #[test]
    fn the_reference_is_always_there_and_many_are_also_measured_idle() {
        let lines: Vec<(u32, u32)> =
            plan(&[100, 1]).lines().iter().map(|line| (line.qps, line.active_qps)).collect();
        assert_eq!(lines, [(1, 1), (16, 16), (100, 100), (100, 16)]);
    }

    #[test]
    fn a_hundred_queue_pairs_are_compared_with_sixteen() {
        let mut stage = Stage::new(1, Duration::from_millis(3), 0).unwrap();
        stage.launcher = crate::baseline::tests_launcher();
        let chosen = Selection::softnic().choose().unwrap();
        let report = run(&chosen, &stage, &plan(&[100]), &mut |_| true).unwrap();
        let rows = report.to_json()["tables"][0]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["ratio_of_time"]["median"].as_f64().unwrap() > 0.0));
        assert_eq!(rows[0]["ratio_of_latency"]["median"], 1);
    }
}
