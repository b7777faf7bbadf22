//! The library's choice of preset, compared with the best preset of an exhaustive search, on the workloads of the
//! papers.

use super::servers::open_store;
use crate::experiments::calls::{self, CallTask, Callee, PATIENCE, SharedContext};
use crate::experiments::kv_main::{FrontEnd, KvTask, StoreFixture};
use crate::experiments::preset_ranking::{AUTO_NOTE, RankedPreset, auto_beside_the_best};
use crate::experiments::server::ServerProcess;
use crate::experiments::{ExperimentEnv, ExperimentError, Progress};
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
    ranked_preset: RankedPreset,
}

/// Measures every case under every preset and under the library's choice.
///
/// # Errors
/// Returns an error if nothing can be measured.
pub fn auto(
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    progress: Progress<'_>,
) -> Result<Report, ExperimentError> {
    pin_thread(env.client_core)?;
    let nic = &chosen.selection;
    let mut conditions = env.conditions();
    conditions.push("provider", nic.provider.to_string());
    conditions.push("threads", "1 server thread, 1 client thread");
    let title = "The library's choice of a preset, on the workloads of the papers";
    let mut report = env.report(title, conditions, nic.provider);
    let (echo, mut store) = (calls::start_echo(env, nic, 1)?, open_store(env, nic, FrontEnd::ServerReply)?);
    if let Some(decision) = store.chosen()? {
        report.conditions.push(AUTO, decision.to_string());
    }
    let presets = || PRESETS.iter().map(|preset| preset.name).chain([AUTO]);
    let line =
        |case, preset| Line { case, ranked_preset: RankedPreset { preset, ..RankedPreset::default() } };
    let mut lines: Vec<Line> =
        CASES.into_iter().flat_map(|case| presets().map(move |preset| line(case, preset))).collect();
    env.interleave(
        &mut lines,
        &mut report,
        progress,
        |line| format!("{}, {}", line.case.0, line.ranked_preset.preset),
        |line, repetition, report| line.measure((env, chosen), &echo, &mut store, repetition, report),
    )?;
    let mut cases: Vec<(String, Vec<RankedPreset>)> = Vec::new();
    for Line { case: (name, _), ranked_preset } in lines {
        match cases.iter_mut().find(|(known, _)| known == name) {
            Some((_, presets_measured)) => presets_measured.push(ranked_preset),
            None => cases.push((name.to_owned(), vec![ranked_preset])),
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
        (env, chosen): (&ExperimentEnv, &SelectedNic),
        echo: &ServerProcess,
        store: &mut StoreFixture,
        repetition: u32,
        report: &mut Report,
    ) -> Result<(), ExperimentError> {
        let ranked_preset = &mut self.ranked_preset;
        match self.case.1 {
            Load::Calls(task) => {
                let context = SharedContext { env, nic: &chosen.selection, profile: None, server: echo };
                let sample = calls::measure(&CallTask { preset: ranked_preset.preset, ..task }, &context)?;
                ranked_preset.per_second.push(sample.figures.per_second);
                ranked_preset.chosen = sample.choice.map(|choice| choice.preset);
            }
            Load::Store(workload, window) => {
                let front_end =
                    FrontEnd::of_preset(ranked_preset.preset).ok_or("a preset without a front end")?;
                let task = KvTask {
                    front_end,
                    workload,
                    distribution: Distribution::Uniform,
                    window,
                    connections: CONNECTIONS,
                    batch: None,
                };
                let sample = store.run(&task, repetition, &mut report.problems)?;
                ranked_preset.per_second.push(sample.load.ops_per_second());
                if ranked_preset.preset == AUTO && ranked_preset.chosen.is_none() {
                    ranked_preset.chosen = store.chosen()?.map(|decision| decision.preset().to_owned());
                }
            }
        }
        Ok(())
    }
}

/// Returns the figures of all presets.
fn all_of(cases: &[(String, Vec<RankedPreset>)]) -> Table {
    let columns = vec![
        Column::new("workload", "workload"),
        Column::new("preset", "preset"),
        Column::new("per_second", "operations/s"),
    ];
    let mut table = Table::new("All presets, medians", columns);
    for (case, presets_measured) in cases {
        for ranked_preset in presets_measured {
            table.push(vec![
                case.as_str().into(),
                ranked_preset.preset.into(),
                ranked_preset.median().into(),
            ]);
        }
    }
    table
}
