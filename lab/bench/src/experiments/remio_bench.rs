//! One-sided I/O to memory of another process: the effect of merging, chaining and admission control,
//! compared with plain verbs as the limit.

use super::ExperimentError;
use super::env::{ExperimentEnv, Progress, Sampled};
use crate::measure::Spread;
use crate::remio::{
    LocalMemory, Polling, RemioTask, Sample, Task, VerbsTask, Workload, combining_name, measure,
};
use crate::report::{Cell, Column, Figure, Report, Shown, Table};
use farcall::select::SelectedNic;
use farcall_io::Combining;

/// Meaning of the columns.
const COLUMNS_NOTE: &str = "KiB: the window of admission. Completion time: from submitting a request until it is told \
                            of, waiting for the window and for others included. Work requests (work), doorbells \
                            (bells), looks for completions and sleeps are for each request. CPU: of all threads of \
                            this process, bytes made and checked included; the server sleeps.";
const STACKED_NOTE: &str = "Bursts that stack up: a policy of admission holds all but the first request back until \
                            the burst is whole. RDMAbox reports 0.83 work requests for each request to read (table \
                            I, merging).";

/// Plan of the experiment.
#[derive(Debug, Clone)]
pub struct RemioPlan {
    /// Cores, durations, repetitions, seed.
    pub env: ExperimentEnv,
    /// Access patterns.
    pub workloads: Vec<Workload>,
    /// Combining strategies.
    pub combinings: Vec<Combining>,
    /// Admission windows in bytes; `None` is without a window.
    pub windows: Vec<Option<u64>>,
    /// Numbers of threads that submit requests.
    pub threads: Vec<u32>,
    /// Owners of the local memory.
    pub memories: Vec<LocalMemory>,
    /// Threads that poll for completions.
    pub pollings: Vec<Polling>,
    /// Settings common to all tasks.
    pub usual: RemioTask,
    /// `true` if plain verbs are measured as well.
    pub with_verbs: bool,
}

/// A task and its samples.
type Line = Sampled<Task, Sample>;

/// Measures the tasks of `plan`.
///
/// # Errors
/// Returns an error if a task is not possible, or if the first measurement fails. Later failures, including wrong
/// bytes, are problems of the report.
pub fn run(
    chosen: &SelectedNic,
    plan: &RemioPlan,
    progress: Progress<'_>,
) -> Result<Report, ExperimentError> {
    let env = &plan.env;
    let title = "One-sided I/O to the memory of another process";
    let mut report = env.report(title, plan.conditions(chosen), chosen.selection.provider);
    let (as_they_come, stacked) = (plan.as_they_come(), plan.stacked());
    as_they_come.iter().chain(&stacked).try_for_each(RemioTask::check)?;
    let counts = [as_they_come.len(), stacked.len()];
    let all = as_they_come.into_iter().chain(stacked).map(Task::Remio);
    let all = all.chain(plan.verbs().into_iter().map(Task::Verbs));
    let lines = env.sample(all, &mut report, progress, Task::to_string, |task, repetition, _| {
        let seed = env.seed.wrapping_add(u64::from(repetition));
        measure(chosen, task, &env.pair_plan(), seed).map(Some)
    })?;
    let (as_they_come, rest) = lines.split_at(counts[0]);
    let (stacked, verbs) = rest.split_at(counts[1]);
    report.tables.push(table("Requests as they come", as_they_come));
    if !stacked.is_empty() {
        report.tables.push(table("Bursts that stack up, one thread", stacked));
        report.note(STACKED_NOTE);
    }
    if !verbs.is_empty() {
        report.tables.push(table("Bare verbs, the limit: one thread, one queue pair", verbs));
    }
    report.note(COLUMNS_NOTE);
    Ok(report)
}

impl RemioPlan {
    fn conditions(&self, chosen: &SelectedNic) -> crate::report::Conditions {
        let RemioTask { burst, len_bytes, region_bytes, connections, .. } = self.usual;
        let mut conditions = self.env.conditions();
        conditions.push("provider", chosen.selection.provider.name());
        conditions.push("because", chosen.explanation.clone());
        conditions.push(
            "requests",
            format!(
                "{len_bytes} B, in bursts of {burst} by each thread, to {} MiB of a sleeping process over \
                 {connections} queue pairs; every byte is checked",
                region_bytes >> 20
            ),
        );
        conditions.push(
            "threads",
            "those that submit on both cores in turn, from the client's on; those that only look for completions \
             likewise, from the server's on, where the server sleeps",
        );
        conditions
    }

    /// Returns all combinations of the choices.
    fn as_they_come(&self) -> Vec<RemioTask> {
        let mut tasks = vec![self.usual];
        tasks = each(&tasks, &self.workloads, |task, workload| RemioTask { workload, ..task });
        tasks = each(&tasks, &self.threads, |task, threads| RemioTask { threads, ..task });
        tasks = each(&tasks, &self.memories, |task, memory| RemioTask { memory, ..task });
        tasks = each(&tasks, &self.pollings, |task, polling| RemioTask { polling, ..task });
        tasks = each(&tasks, &self.windows, |task, window_bytes| RemioTask { window_bytes, ..task });
        each(&tasks, &self.combinings, |task, combining| RemioTask { combining, ..task })
    }

    fn stacked(&self) -> Vec<RemioTask> {
        let tasks = each(&[self.usual.stacked()], &self.workloads, |task, workload| {
            // A number of requests with the share of adjacent ones that the paper states.
            let burst = if workload == Workload::TABLE_1 { 6 } else { task.burst };
            RemioTask { workload, burst, ..task }
        });
        each(&tasks, &self.combinings, |task, combining| RemioTask { combining, ..task })
    }

    /// Returns tasks of plain verbs with one request at a time, and with as many as a thread's burst.
    fn verbs(&self) -> Vec<VerbsTask> {
        let RemioTask { burst, len_bytes, region_bytes, .. } = self.usual;
        let workloads = if self.with_verbs { &self.workloads[..] } else { &[] };
        let task = |workload, window| VerbsTask { workload, window, len_bytes, region_bytes };
        let mut windows = vec![1, burst];
        windows.dedup();
        workloads.iter().flat_map(|workload| windows.iter().map(|window| task(*workload, *window))).collect()
    }
}

/// Combines every task with every value.
fn each<V: Copy>(
    tasks: &[RemioTask],
    values: &[V],
    with: impl Fn(RemioTask, V) -> RemioTask,
) -> Vec<RemioTask> {
    tasks.iter().flat_map(|task| values.iter().map(|value| with(*task, *value))).collect()
}

/// Returns the figures of a sample.
fn figures() -> [Figure<Sample>; 11] {
    [
        (Column::new("per_second", "per second"), |sample| sample.per_second),
        (Column::median("p50_us", "p50 µs", 1), Sample::p50_us),
        (Column::median("p99_us", "p99 µs", 0), Sample::p99_us),
        (Column::median("work_per_request", "work", 3), Sample::work_per_request),
        (Column::median("doorbells_per_request", "bells", 3), |it| it.per_request(it.counts.doorbells)),
        (Column::median("cpu_us_per_request", "CPU µs", 2), |sample| sample.cpu_us_per_request),
        (Column::median("merged_per_request", "merged", 3).wide(), |it| it.per_request(it.counts.merged)),
        (Column::median("chained_per_request", "chained", 3).wide(), |it| it.per_request(it.counts.chained)),
        (Column::median("polls_per_request", "looks", 2).wide(), |it| it.per_request(it.polls.polls)),
        (Column::median("sleeps_per_request", "sleeps", 3).wide(), |it| it.per_request(it.polls.sleeps)),
        (Column::median("in_flight_kib", "KiB in flight", 0).wide(), Sample::in_flight_kib),
    ]
}

/// Returns a table with one row for each line. Columns with the same value in all lines are only shown in wide text.
fn table(title: &str, lines: &[Line]) -> Table {
    let rows: Vec<Vec<Cell>> = lines.iter().map(|line| lead(line, lines)).collect();
    let mut columns = vec![
        Column::new("workload", "workload"),
        Column::new("how", "how"),
        Column::new("threads", "threads"),
        Column::new("window_kib", "KiB"),
        Column::new("memory", "memory"),
        Column::new("waiting", "waiting"),
        Column::median("ratio_of_single", "× single", 2),
    ];
    for (at, column) in columns.iter_mut().enumerate().skip(2) {
        if rows.windows(2).all(|pair| pair[0][at] == pair[1][at]) {
            column.shown = Shown::InWideText;
        }
    }
    let rows = rows.into_iter().zip(lines).map(|(lead, line)| (lead, &line.samples[..]));
    Table::of_samples(title, columns, &figures(), rows)
}

/// Returns the cells that distinguish a row from others.
fn lead(line: &Line, lines: &[Line]) -> Vec<Cell> {
    match &line.subject {
        Task::Remio(task) => vec![
            task.workload.name.into(),
            combining_name(task.combining).into(),
            u64::from(task.threads).into(),
            task.window_bytes.map(|bytes| bytes >> 10).into(),
            task.memory.name().into(),
            task.polling.name().into(),
            ratio_of_single(task, line, lines),
        ],
        Task::Verbs(task) => {
            let (workload, how) = (task.workload.name, format!("{} at a time", task.window));
            let (memory, waiting) = (LocalMemory::RegisteredOnce.name(), Polling::Inline.name());
            let one = 1_u64.into();
            vec![workload.into(), how.into(), one, Cell::None, memory.into(), waiting.into(), Cell::None]
        }
    }
}

/// Returns the ratio of requests a second to that of the same task with one work request and one doorbell per request,
/// computed within each repetition.
fn ratio_of_single(task: &RemioTask, line: &Line, lines: &[Line]) -> Cell {
    let single = Task::Remio(RemioTask { combining: Combining::Single, ..*task });
    let reference = lines.iter().find(|other| other.subject == single);
    let pairs = reference.iter().flat_map(|reference| line.samples.iter().zip(&reference.samples));
    Spread::of(pairs.map(|(sample, single)| sample.per_second / single.per_second)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::select::Selection;

    fn plan() -> RemioPlan {
        let usual = RemioTask::of(Workload::MIXED, Combining::MergeAndChain);
        RemioPlan {
            env: crate::peer::tests::env(2),
            workloads: vec![Workload::ADJACENT_WRITES, Workload::TABLE_1],
            combinings: vec![Combining::Single, Combining::MergeAndChain],
            windows: vec![None, Some(64 << 10)],
            threads: vec![2],
            memories: vec![LocalMemory::Copied],
            pollings: vec![Polling::Adaptive],
            usual: RemioTask { region_bytes: 1 << 20, burst: 8, ..usual },
            with_verbs: true,
        }
    }

    #[test]
    fn every_choice_has_its_row_and_its_ratio() {
        let chosen = Selection::softnic().open().unwrap();
        let report = run(&chosen, &plan(), &mut |_| true).unwrap();
        assert!(report.is_sound(), "{report}");
        let json = report.to_json();
        let rows = |at: usize| json["tables"][at]["rows"].as_array().unwrap();
        assert_eq!([rows(0).len(), rows(1).len(), rows(2).len()], [8, 4, 4]);
        let median = |row: &serde_json::Value, column: &str| row[column]["median"].as_f64().unwrap();
        for row in rows(0).iter().chain(rows(1)).chain(rows(2)) {
            assert!(median(row, "per_second") > 0.0 && median(row, "p99_us") > 0.0, "{row}");
        }
        for row in rows(0).iter().filter(|row| row["how"] == "single") {
            assert_eq!(
                (median(row, "ratio_of_single"), median(row, "work_per_request")),
                (1.0, 1.0),
                "{row}"
            );
        }
        // Two of six requests are adjacent: 5 work requests.
        let table_1 = rows(1).iter().find(|row| row["workload"] == "table-1" && row["how"] == "merge+chain");
        let work = median(table_1.unwrap(), "work_per_request");
        assert!((work - 5.0 / 6.0).abs() < 1e-9, "{work}");
    }

    #[test]
    fn an_impossible_choice_ends_it_before_anything_is_measured() {
        let chosen = Selection::softnic().open().unwrap();
        let plan = RemioPlan { pollings: vec![Polling::Inline], ..plan() };
        let error = run(&chosen, &plan, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains("only one thread"), "{error}");
    }
}
