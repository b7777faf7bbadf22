//! Performance of a provider's verbs, compared with the limit of the machine and UCX, interleaved.

mod selection;

pub use selection::{Adjustments, Figure, Selection};

use super::env::{ExperimentEnv, Progress, Sampled};
use super::limits::find_ucx;
use super::subject::{Rival, Sample, Subject};
use crate::baseline::{Baseline, PAYLOAD_LEN_BYTES};
use crate::report::{self, Cell, Column, Report, Table};
use crate::rnic::{Inlining, RnicError, RnicTask, Survey};
use crate::ucx::UcxTest;
use farcall::select::SelectedNic;

/// Measures what is selected, and UCX in addition if `with_ucx`.
///
/// # Errors
/// Returns an error if the selection is not possible, or if a measurement of the provider fails. A failure of UCX is a
/// note.
pub fn run(
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    selection: &Selection,
    with_ucx: bool,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&chosen.nic);
    let picked = selection.pick(&survey)?;
    let mut report = new_report("Verbs between two processes", chosen, env, &survey);
    report.conditions.push(
        "measures",
        "latency: one message at a time; rate: small messages in chains; bandwidth: large ones, a few outstanding",
    );
    describe(&mut report, &picked.tasks);
    report.notes.extend(picked.left_out.iter().map(|refusal| format!("Not measured: {refusal}.")));
    let is_one_host = env.server_half().is_none();
    let ucx = find_ucx(with_ucx && is_one_host, &mut report);
    let bare = is_one_host.then_some(Rival::Bare(Baseline::SharedMemory));
    let ucx_tests = UcxTest::ALL.into_iter().filter(|_| ucx.is_some()).map(Rival::Ucx);
    let subjects = bare.into_iter().map(Subject::from);
    let subjects = subjects.chain(picked.tasks.into_iter().map(Subject::from));
    let subjects = subjects.chain(ucx_tests.map(Subject::from));
    let sampled = env.sample(subjects, &mut report, progress, Subject::to_string, |subject, _, report| {
        subject.measure(chosen, env, ucx.as_ref(), report)
    })?;
    report.tables.push(table(&sampled));
    Ok(report)
}

/// Returns the table of all figures of all subjects.
fn table(sampled: &[Sampled<Subject, Sample>]) -> Table {
    let lead = vec![
        Column::new("what", "what"),
        Column::json_only("operation"),
        Column::json_only("transport"),
        Column::json_only("len_bytes"),
    ];
    let figures: [report::Figure<Sample>; 10] = [
        (Column::with_decimals("p50_us", "p50 µs", 3), |sample| sample.p50_us),
        (Column::with_decimals("mean_us", "mean µs", 3).wide(), |sample| sample.mean_us),
        (Column::median("p99_us", "p99 µs", 3), |sample| sample.p99_us),
        (Column::median("p999_us", "p99.9 µs", 2).wide(), |sample| sample.p999_us),
        (Column::new("messages_per_second", "messages/s"), |sample| sample.per_second),
        (Column::with_decimals("gb_per_second", "GB/s", 3), |sample| sample.bytes_per_second / 1e9),
        (Column::median("lost_percent", "lost %", 1), |sample| sample.lost_percent),
        (Column::median("client_cores", "client cores", 2).wide(), |sample| sample.cores.client),
        (Column::median("server_cores", "server cores", 2).wide(), |sample| sample.cores.server),
        (Column::median("samples", "samples", 0).wide(), |sample| sample.count),
    ];
    let title =
        "Latencies are one way (half a ping-pong), or the whole operation where it says “until completion”";
    let mut table = Table::of_figures(title, lead, &figures);
    for Sampled { subject, samples } in sampled {
        let what = subject.to_string().into();
        let (operation, transport, len_bytes) = match subject {
            Subject::Verbs(task) => {
                (task.operation.to_string().into(), task.transport.to_string().into(), task.len_bytes)
            }
            Subject::Rival(Rival::Ucx(test)) => (Cell::None, Cell::None, test.message_len_bytes()),
            _ => (Cell::None, Cell::None, PAYLOAD_LEN_BYTES),
        };
        let lead = vec![what, operation, transport, (len_bytes as u64).into()];
        if let Subject::Rival(Rival::Bare(_)) = subject {
            let one_way: Vec<Sample> = samples.iter().map(|sample| sample.stretched(0.5)).collect();
            table.push_figures(lead, &figures, &one_way);
        } else {
            table.push_figures(lead, &figures, samples);
        }
    }
    table
}

/// Returns an empty report with the conditions of every measurement between two processes over verbs.
pub(super) fn new_report(title: &str, chosen: &SelectedNic, env: &ExperimentEnv, survey: &Survey) -> Report {
    let mut conditions = env.conditions();
    conditions.push("provider", chosen.nic.provider());
    conditions.push("because", chosen.explanation.clone());
    conditions.push("device", survey.device.clone());
    conditions.push("threads", "one process with one thread at each end");
    env.report(title, conditions, chosen.selection.provider)
}

/// Adds the parameters that all tasks have in common to the conditions.
fn describe(report: &mut Report, tasks: &[RnicTask]) {
    let Some(first) = tasks.first() else { return };
    let tuning = first.tuning;
    let inlining = match tuning.inlining {
        Inlining::Auto => "inlined up to 256 B where the device can".to_owned(),
        Inlining::UpTo(0) => "nothing inlined".to_owned(),
        Inlining::UpTo(bytes) => format!("inlined up to {bytes} B"),
    };
    let waiting = if tuning.sleeps { "both ends sleep on completion events" } else { "both ends poll" };
    let mut how = vec![waiting.to_owned(), inlining];
    let mut windows: Vec<(u32, u32, u32)> = tasks
        .iter()
        .filter(|task| !task.is_latency())
        .map(|RnicTask { tuning, .. }| (tuning.window, tuning.chain, tuning.signal_every))
        .collect();
    windows.dedup();
    how.extend(windows.iter().map(|(window, chain, signal_every)| {
        format!("{window} outstanding in chains of {chain}, one of {signal_every} signalled")
    }));
    if tuning.assumes_order {
        how.push("WRITEs found by their last byte, which is assumed to be placed last".to_owned());
    }
    if tasks
        .iter()
        .any(|task| !task.is_latency() && task.is_unreliable() && task.operation.consumes_receive())
    {
        how.push("over UC and UD the target returns credits, so that it always has receives".to_owned());
    }
    report.conditions.push("how", how.join("; "));
}
