//! Cost of connected queue pairs that share one completion queue at each end.
//!
//! Messages use the queue pairs in turn: all of them, or the first few while the others are only connected. The
//! reference is the same work over 16 queue pairs; the ratio is taken within a repetition. Each figure is taken
//! between two new processes. In a process that has created and destroyed a thousand pairs before, the memory of the
//! next thousand is fragmented, and they cost more.

use super::env::{ExperimentEnv, Progress};
use super::line::Sample;
use super::perf::new_report;
use crate::measure::Spread;
use crate::report::{Cell, Column, Report, Table};
use crate::rnic::{self, Operation, RnicError, RnicTask, RnicTest, Survey, Tuning};
use farcall::select::SelectedNic;
use farcall_link::Transport;
use farcall_shm::raise_descriptor_limit;

/// Number of queue pairs that the others are compared with.
pub const REFERENCE_QPS: u32 = 16;

/// Plan of the experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpsPlan {
    /// Numbers of connected queue pairs.
    pub counts: Vec<u32>,
    /// Operation of the messages.
    pub operation: Operation,
    /// Transport of the queue pairs.
    pub transport: Transport,
    /// Bytes of each message.
    pub len_bytes: usize,
    /// Requests outstanding on each queue pair that carries messages.
    pub window: u32,
}

/// A number of queue pairs and its samples.
struct Line {
    qps: u32,
    active_qps: u32,
    rates: Vec<Sample>,
    latencies: Vec<Sample>,
}

/// Measures the queue pairs of `plan`.
///
/// # Errors
/// Returns an error if the plan is not possible, or if a measurement fails.
pub fn run(
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    plan: &QpsPlan,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&chosen.nic);
    let mut lines = plan.lines();
    for line in &lines {
        for task in [plan.rate(line), plan.latency(line)] {
            task.check()?;
            task.check_device(&survey.attr, &survey.port.attr)?;
        }
    }
    let mut report = new_report("Many queue pairs through one completion queue", chosen, env, &survey);
    report.conditions.push(
        "measures",
        format!(
            "{} {} of {} B, over queue pairs in turn, {} outstanding on each; the time per message is that of the slower end",
            plan.transport, plan.operation, plan.len_bytes, plan.window
        ),
    );
    // The peers inherit the limit. If it is too low, the operation that runs out of descriptors reports it.
    raise_descriptor_limit();
    env.interleave(
        &mut lines,
        &mut report,
        progress,
        |line| format!("{} queue pairs, {} active", line.qps, line.active_qps),
        |line, _, _| {
            let measure = |task| rnic::measure_apart(chosen, task, &env.pair_plan()).map(Sample::from);
            line.rates.push(measure(plan.rate(line))?);
            line.latencies.push(measure(plan.latency(line))?);
            Ok::<(), RnicError>(())
        },
    )?;
    report.tables.push(table(&lines));
    Ok(report)
}

impl QpsPlan {
    /// Returns a line for each number of queue pairs with all active. Numbers above the reference also get a line with
    /// as many active as the reference.
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
        RnicTask { test: RnicTest::Throughput, tuning, ..self.latency(line) }
    }

    fn latency(&self, line: &Line) -> RnicTask {
        RnicTask::latency(self.operation, self.transport, self.len_bytes, self.tuning(line))
    }

    fn tuning(&self, line: &Line) -> Tuning {
        Tuning { qps: line.qps, active_qps: line.active_qps, ..Tuning::LATENCY }
    }
}

fn table(lines: &[Line]) -> Table {
    let ns_per_message = |sample: &Sample| 1e9 / sample.per_second;
    let median_us = |sample: &Sample| sample.p50_us;
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
            Column::median("lost_percent", "lost %", 1),
            Column::median("client_cores", "client cores", 2).wide(),
            Column::median("server_cores", "server cores", 2).wide(),
        ],
    );
    let reference = lines.iter().find(|line| line.qps == REFERENCE_QPS);
    for line in lines {
        let reference = reference.unwrap_or(line);
        table.push(vec![
            u64::from(line.qps).into(),
            u64::from(line.active_qps).into(),
            spread(&line.rates, |sample| sample.per_second),
            spread(&line.rates, ns_per_message),
            ratios(&line.rates, &reference.rates, ns_per_message),
            spread(&line.latencies, median_us),
            ratios(&line.latencies, &reference.latencies, median_us),
            spread(&line.rates, |sample| sample.lost_percent),
            spread(&line.rates, |sample| sample.client_cores),
            spread(&line.rates, |sample| sample.server_cores),
        ]);
    }
    table
}

fn spread(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> Cell {
    Spread::of(samples.iter().map(figure)).into()
}

/// Returns the ratios of a figure to that of the reference in the same repetition.
fn ratios(samples: &[Sample], reference: &[Sample], figure: impl Fn(&Sample) -> f64) -> Cell {
    Spread::of(samples.iter().zip(reference).map(|(sample, reference)| figure(sample) / figure(reference)))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::select::Selection;
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
    fn plans_the_reference_and_idle_runs_of_many_queue_pairs() {
        let lines: Vec<(u32, u32)> =
            plan(&[100, 1]).lines().iter().map(|line| (line.qps, line.active_qps)).collect();
        assert_eq!(lines, [(1, 1), (16, 16), (100, 100), (100, 16)]);
    }

    #[test]
    fn a_hundred_queue_pairs_are_compared_with_sixteen() {
        let mut env = ExperimentEnv::new(1, Duration::from_millis(3), 0).unwrap();
        env.launcher = crate::peer::tests::launcher();
        let chosen = Selection::softnic().open().unwrap();
        let report = run(&chosen, &env, &plan(&[100]), &mut |_| true).unwrap();
        let rows = report.to_json()["tables"][0]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["ratio_of_time"]["median"].as_f64().unwrap() > 0.0));
        assert_eq!(rows[0]["ratio_of_latency"]["median"], 1);
    }
}
