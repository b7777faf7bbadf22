//! Cost of connected queue pairs that share one completion queue at each end.
//!
//! Messages use the queue pairs in turn: all of them, or the first few while the others are only connected. The
//! reference is the same work over 16 queue pairs; the ratio is taken within a repetition. Each figure is taken
//! between two new processes. In a process that has created and destroyed a thousand pairs before, the memory of the
//! next thousand is fragmented, and they cost more.

use super::env::{ExperimentEnv, Progress, Sampled};
use super::perf::new_report;
use super::subject::Sample;
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

/// Connected queue pairs, and those of them that carry messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Qps {
    connected: u32,
    active: u32,
}

/// Throughput, and latency of one message at a time.
type Samples = (Sample, Sample);

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
    let all = plan.qps();
    for qps in &all {
        for task in [plan.rate(*qps), plan.latency(*qps)] {
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
    let title = |qps: &Qps| format!("{} queue pairs, {} active", qps.connected, qps.active);
    let sampled = env.sample(all, &mut report, progress, title, |qps, _, _| {
        let measure = |task| rnic::measure_apart(chosen, task, &env.pair_plan()).map(Sample::from);
        Ok::<_, RnicError>(Some((measure(plan.rate(*qps))?, measure(plan.latency(*qps))?)))
    })?;
    report.tables.push(table(&sampled));
    Ok(report)
}

impl QpsPlan {
    /// Returns each number of queue pairs with all active. Numbers above the reference are also measured with as many
    /// active as the reference.
    fn qps(&self) -> Vec<Qps> {
        let qps = |connected: &u32, active: &u32| Qps { connected: *connected, active: *active };
        let mut counts = self.counts.clone();
        counts.push(REFERENCE_QPS);
        counts.sort_unstable();
        counts.dedup();
        let all = counts.iter().map(|count| qps(count, count));
        let few = counts.iter().filter(|count| **count > REFERENCE_QPS);
        let few = few.map(|count| qps(count, &REFERENCE_QPS));
        all.chain(few).collect()
    }

    fn rate(&self, qps: Qps) -> RnicTask {
        let tuning = Tuning { window: self.window, chain: 1, signal_every: self.window, ..self.tuning(qps) };
        RnicTask { test: RnicTest::Throughput, tuning, ..self.latency(qps) }
    }

    fn latency(&self, qps: Qps) -> RnicTask {
        RnicTask::latency(self.operation, self.transport, self.len_bytes, self.tuning(qps))
    }

    fn tuning(&self, qps: Qps) -> Tuning {
        Tuning { qps: qps.connected, active_qps: qps.active, ..Tuning::LATENCY }
    }
}

fn table(sampled: &[Sampled<Qps, Samples>]) -> Table {
    let ns_per_message = |(rate, _): &Samples| 1e9 / rate.per_second;
    let median_us = |(_, latency): &Samples| latency.p50_us;
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
    let reference = sampled.iter().find(|it| it.subject.connected == REFERENCE_QPS);
    for it @ Sampled { subject, samples } in sampled {
        let reference = &reference.unwrap_or(it).samples;
        table.push(vec![
            u64::from(subject.connected).into(),
            u64::from(subject.active).into(),
            spread(samples, |(rate, _)| rate.per_second),
            spread(samples, ns_per_message),
            ratios(samples, reference, ns_per_message),
            spread(samples, median_us),
            ratios(samples, reference, median_us),
            spread(samples, |(rate, _)| rate.lost_percent),
            spread(samples, |(rate, _)| rate.cores.client),
            spread(samples, |(rate, _)| rate.cores.server),
        ]);
    }
    table
}

fn spread(samples: &[Samples], figure: impl Fn(&Samples) -> f64) -> Cell {
    Spread::of(samples.iter().map(figure)).into()
}

/// Returns the ratios of a figure to that of the reference in the same repetition.
fn ratios(samples: &[Samples], reference: &[Samples], figure: impl Fn(&Samples) -> f64) -> Cell {
    Spread::of(samples.iter().zip(reference).map(|(sample, reference)| figure(sample) / figure(reference)))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::select::Selection;

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
        let planned: Vec<(u32, u32)> =
            plan(&[100, 1]).qps().iter().map(|qps| (qps.connected, qps.active)).collect();
        assert_eq!(planned, [(1, 1), (16, 16), (100, 100), (100, 16)]);
    }

    #[test]
    fn a_hundred_queue_pairs_are_compared_with_sixteen() {
        let env = crate::peer::tests::env(3);
        let chosen = Selection::softnic().open().unwrap();
        let report = run(&chosen, &env, &plan(&[100]), &mut |_| true).unwrap();
        let rows = report.to_json()["tables"][0]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row["ratio_of_time"]["median"].as_f64().unwrap() > 0.0));
        assert_eq!(rows[0]["ratio_of_latency"]["median"], 1);
    }
}
