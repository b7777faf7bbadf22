//! What the verbs of a provider can do, beside the bare limit and UCX, interleaved.

mod line;
mod selection;

pub use selection::{Adjustments, Figure, Selection};

use super::limits::find_ucx;
use super::stage::{Progress, Stage};
use crate::report::Report;
use crate::rnic::{Finding, Inlining, LastByte, RnicError, RnicTask, Survey};
use crate::ucx::UcxTest;
use farcall_providers::Chosen;
use line::Line;

/// Measures what is selected, with UCX beside it if `with_ucx`.
///
/// # Errors
/// When what is selected makes no sense, or a measurement of ours fails. UCX failing is a note.
pub fn run(
    chosen: &Chosen,
    stage: &Stage,
    selection: &Selection,
    with_ucx: bool,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&*chosen.provider)?;
    let picked = selection.pick(&survey)?;
    let mut report = new_report("Verbs between two processes", chosen, stage, &survey);
    report.conditions.push(
        "measures",
        "latency: one message at a time; rate: small messages in chains; bandwidth: large ones, a few outstanding",
    );
    describe(&mut report, &picked.tasks);
    report.notes.extend(picked.left_out.iter().map(|refusal| format!("Not measured: {refusal}.")));
    let ucx = if with_ucx { find_ucx(&mut report) } else { None };
    let mut lines = vec![Line::Bare(Vec::new())];
    lines.extend(picked.tasks.into_iter().map(|task| Line::Ours(task, Vec::new())));
    if ucx.is_some() {
        lines.extend(UcxTest::ALL.map(|test| Line::Ucx(test, Vec::new())));
    }
    for repetition in 1..=stage.repetitions {
        for line in &mut lines {
            if !progress(&format!("{} ({repetition} of {})", line.title(), stage.repetitions)) {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            }
            if let Some(note) = line.measure(chosen, stage, ucx.as_ref())?
                && !report.notes.contains(&note)
            {
                report.notes.push(note);
            }
        }
    }
    report.tables.push(line::table(&lines));
    Ok(report)
}

/// An empty report with the conditions of everything that is measured between two processes over verbs.
pub(super) fn new_report(title: &str, chosen: &Chosen, stage: &Stage, survey: &Survey) -> Report {
    let mut conditions = stage.conditions();
    conditions.push("provider", chosen.provider.name());
    conditions.push("because", chosen.explanation.clone());
    conditions.push("device", survey.device.clone());
    conditions.push("threads", "one process with one thread at each end");
    let mut report = Report::new(title, conditions).over(chosen.selection.wish);
    report.notes.extend(stage.single_core_note());
    report
}

/// Says how it is done, where all tasks agree.
fn describe(report: &mut Report, tasks: &[RnicTask]) {
    let Some(first) = tasks.first() else { return };
    let tuning = first.tuning;
    let inlining = match tuning.inlining {
        Inlining::Auto => "inlined up to 256 B where the device can".to_owned(),
        Inlining::UpTo(0) => "nothing inlined".to_owned(),
        Inlining::UpTo(bytes) => format!("inlined up to {bytes} B"),
    };
    let finding = match tuning.finding {
        Finding::Polling => "both ends poll",
        Finding::Events => "both ends sleep on completion events",
    };
    let mut how = vec![finding.to_owned(), inlining];
    let mut windows: Vec<(u32, u32, u32)> = tasks
        .iter()
        .filter(|task| !task.is_latency())
        .map(|RnicTask { tuning, .. }| (tuning.window, tuning.chain, tuning.signal_every))
        .collect();
    windows.dedup();
    how.extend(windows.iter().map(|(window, chain, signal_every)| {
        format!("{window} outstanding in chains of {chain}, one of {signal_every} signalled")
    }));
    if tuning.last_byte == LastByte::Assumed {
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
