//! The library's choice of preset, compared with the best preset of an exhaustive search, on the workloads of the
//! papers.

use super::servers::open_store;
use crate::experiments::calls::{self, CallTask, Callee, Ground, PATIENCE};
use crate::experiments::contest::{AUTO_NOTE, Contender, auto_beside_the_best};
use crate::experiments::kv_main::{FrontEnd, KvTask, Stand};
use crate::experiments::server::ServerProcess;
use crate::experiments::{ExperimentError, Progress, Stage};
use crate::load::AUTO;
use crate::measure::pin_thread;
use crate::report::{Column, Report, Table};
use crate::workload::{Distribution, Workload};
use farcall::select::SelectedNic;
use farcall_link::PRESETS;

/// Workload of a paper, as calls or as operations of a store. The preset is filled in for each measurement.
#[derive(Clone, Copy)]
enum Load {
    Calls(CallTask),
    Store(Workload, u32),
}

/// The paper's figure or section, and its load on one server thread.
type Case = (&'static str, Load);

const fn calls(callee: Callee, connections: u32) -> Load {
    Load::Calls(CallTask { callee, connections, ..CallTask::small(AUTO) })
}

/// Loads under which the papers compare their systems, in the form that `farcall figures` measures.
const CASES: [Case; 10] = [
    ("A, figure 9: calls of 1 µs", calls(Callee::Work { us: 1 }, 4)),
    ("A, figure 9: calls of 7 µs", calls(Callee::Work { us: 7 }, 4)),
    ("A, figure 9: calls of 12 µs", calls(Callee::Work { us: 12 }, 4)),
    ("A, figure 7: 95 % GET", Load::Store(Workload::B, 1)),
    ("A, section 5: 50 % GET", Load::Store(Workload::A, 1)),
    ("B, figure 3: responses of 64 B", calls(Callee::Block { len_bytes: 64 }, 1)),
    ("B, figure 3: responses of 4 KiB", calls(Callee::Block { len_bytes: 4_096 }, 1)),
    ("B, figure 3: responses of 16 KiB", calls(Callee::Block { len_bytes: 16_384 }, 1)),
    ("B, figure 4: 64 B, eight to one", calls(Callee::Block { len_bytes: 64 }, 8)),
    ("E: 95 % GET, windows of 4", Load::Store(Workload::B, 4)),
];
/// Number of connections to the store.
const CONNECTIONS: u32 = 4;

/// A case under one preset.
struct Line {
    case: Case,
    contender: Contender,
}

/// Measures every case under every preset and under the library's choice.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn auto(chosen: &SelectedNic, stage: &Stage, progress: Progress<'_>) -> Result<Report, ExperimentError> {
    pin_thread(stage.client_core)?;
    let nic = &chosen.selection;
    let mut conditions = stage.conditions();
    conditions.push("provider", nic.provider.to_string());
    conditions.push("threads", "1 server thread, 1 client thread");
    let title = "The library's choice of a preset, on the workloads of the papers";
    let mut report = stage.report(title, conditions, nic.provider);
    let (echo, mut store) =
        (calls::start_echo(stage, nic, 1)?, open_store(stage, nic, FrontEnd::ServerReply)?);
    if let Some(decision) = store.chosen()? {
        report.conditions.push(AUTO, decision.to_string());
    }
    let presets = || PRESETS.iter().map(|preset| preset.name).chain([AUTO]);
    let line = |case, preset| Line { case, contender: Contender { preset, ..Contender::default() } };
    let mut lines: Vec<Line> =
        CASES.into_iter().flat_map(|case| presets().map(move |preset| line(case, preset))).collect();
    stage.interleave(
        &mut lines,
        &mut report,
        progress,
        |line| format!("{}, {}", line.case.0, line.contender.preset),
        |line, repetition, report| line.measure((stage, chosen), &echo, &mut store, repetition, report),
    )?;
    let mut cases: Vec<(String, Vec<Contender>)> = Vec::new();
    for Line { case: (name, _), contender } in lines {
        match cases.iter_mut().find(|(known, _)| known == name) {
            Some((_, contenders)) => contenders.push(contender),
            None => cases.push((name.to_owned(), vec![contender])),
        }
    }
    report.tables.extend(auto_beside_the_best(&cases));
    report.tables.push(all_of(&cases));
    report.note(AUTO_NOTE);
    echo.end(PATIENCE, &mut report);
    Ok(report)
}

impl Line {
    fn measure(
        &mut self,
        (stage, chosen): (&Stage, &SelectedNic),
        echo: &ServerProcess,
        store: &mut Stand,
        repetition: u32,
        report: &mut Report,
    ) -> Result<(), ExperimentError> {
        let contender = &mut self.contender;
        match self.case.1 {
            Load::Calls(task) => {
                let ground = Ground { stage, nic: &chosen.selection, profile: None, server: echo };
                let sample = calls::measure(&CallTask { preset: contender.preset, ..task }, &ground)?;
                contender.per_second.push(sample.figures.per_second);
                contender.chosen = sample.choice.map(|choice| choice.preset);
            }
            Load::Store(workload, window) => {
                let front_end =
                    FrontEnd::of_preset(contender.preset).ok_or("a preset without a front end")?;
                let task = KvTask {
                    front_end,
                    workload,
                    distribution: Distribution::Uniform,
                    window,
                    connections: CONNECTIONS,
                    batch: None,
                };
                let sample = store.run(&task, repetition, &mut report.problems)?;
                contender.per_second.push(sample.load.ops_per_second());
                if contender.preset == AUTO && contender.chosen.is_none() {
                    contender.chosen = store.chosen()?.map(|decision| decision.preset().to_owned());
                }
            }
        }
        Ok(())
    }
}

/// Returns the figures of all presets.
fn all_of(cases: &[(String, Vec<Contender>)]) -> Table {
    let columns = vec![
        Column::new("workload", "workload"),
        Column::new("preset", "preset"),
        Column::new("per_second", "operations/s"),
    ];
    let mut table = Table::new("All presets, medians", columns);
    for (case, contenders) in cases {
        for contender in contenders {
            table.push(vec![case.as_str().into(), contender.preset.into(), contender.median().into()]);
        }
    }
    table
}
