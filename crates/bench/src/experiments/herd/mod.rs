//! The verb micro-benchmarks of HERD ("Using RDMA Efficiently for Key-Value Services", section 3), one file a figure, with
//! what the paper publishes beside what is measured here.
//!
//! One process stands for all clients, one for the server. In-bound, the clients initiate and the server is passive;
//! out-bound, the server initiates and the clients are passive.

mod echo;
mod inbound;
mod latency;
mod outbound;
mod published;
mod series;

use super::perf::new_report;
use super::stage::{Progress, Stage};
use crate::report::Report;
use crate::rnic::{LastByte, RnicError, Survey};
use farcall_providers::Chosen;
use series::Grid;

/// A figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HerdFigure {
    /// Figure 2: latency of READ, WRITE, inlined WRITE and ECHO.
    Latency,
    /// Figure 3: in-bound throughput.
    Inbound,
    /// Figure 4: out-bound throughput.
    Outbound,
    /// Throughput of ECHO with the optimisations added one by one.
    Echo,
}

impl HerdFigure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Latency, Self::Inbound, Self::Outbound, Self::Echo];
}

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HerdPlan {
    /// Which figures.
    pub figures: Vec<HerdFigure>,
    /// Bytes of messages; empty: those of each figure.
    pub lens_bytes: Vec<usize>,
    /// Requests outstanding on each connection.
    pub window: u32,
    /// Connections, which stand for the paper's client processes.
    pub connections: u32,
    /// Whether WRITEs may be found by their last byte.
    pub last_byte: LastByte,
}

/// Measures.
///
/// # Errors
/// When a measurement fails. What a device lacks is a note.
pub fn run(
    chosen: &Chosen,
    stage: &Stage,
    plan: &HerdPlan,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&*chosen.provider)?;
    let mut report = new_report("HERD's micro-benchmarks", chosen, stage, &survey);
    report.conditions.push(
        "measures",
        format!(
            "figure by figure; throughput over {} connections, {} requests outstanding on each",
            plan.connections, plan.window
        ),
    );
    report.notes.push(published::SETUP.to_owned());
    report.notes.push(published::ASYMMETRY.to_owned());
    let mut grids: Vec<(HerdFigure, Grid)> =
        plan.figures.iter().map(|figure| (*figure, figure.grid(plan))).collect();
    for (_, grid) in &mut grids {
        for note in grid.leave_out_what_cannot_be(&survey)? {
            add_once(&mut report.notes, note);
        }
    }
    for repetition in 1..=stage.repetitions {
        for (_, grid) in &mut grids {
            let mut go_on = |what: &str| progress(&format!("{what} ({repetition} of {})", stage.repetitions));
            let Some(notes) = grid.measure(chosen, stage, &mut go_on)? else {
                report.problems.push("interrupted before the end".to_owned());
                return Ok(report);
            };
            for note in notes {
                add_once(&mut report.notes, note);
            }
        }
    }
    report.tables.extend(grids.iter().map(|(figure, grid)| figure.table(grid)));
    report.tables.push(published::claims_table(&grids));
    Ok(report)
}

fn add_once(notes: &mut Vec<String>, note: String) {
    if !notes.contains(&note) {
        notes.push(note);
    }
}

impl HerdFigure {
    fn grid(self, plan: &HerdPlan) -> Grid {
        match self {
            Self::Latency => latency::grid(plan),
            Self::Inbound => inbound::grid(plan),
            Self::Outbound => outbound::grid(plan),
            Self::Echo => echo::grid(plan),
        }
    }

    fn table(self, grid: &Grid) -> crate::report::Table {
        match self {
            Self::Latency => latency::table(grid),
            Self::Inbound => inbound::table(grid),
            Self::Outbound => outbound::table(grid),
            Self::Echo => echo::table(grid),
        }
    }
}

impl HerdPlan {
    /// The sizes asked for, or those of a figure.
    fn lens_bytes_or(&self, of_figure: &[usize]) -> Vec<usize> {
        if self.lens_bytes.is_empty() { of_figure.to_vec() } else { self.lens_bytes.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_providers::Selection;
    use std::time::Duration;

    #[test]
    fn every_figure_has_its_table_and_the_papers_words() {
        let mut stage = Stage::new(1, Duration::from_millis(2), 0).unwrap();
        stage.launcher = crate::baseline::tests_launcher();
        let plan = HerdPlan {
            figures: HerdFigure::ALL.to_vec(),
            lens_bytes: vec![32],
            window: 8,
            connections: 2,
            last_byte: LastByte::IfPromised,
        };
        let chosen = Selection::softnic().choose().unwrap();
        let report = run(&chosen, &stage, &plan, &mut |_| true).unwrap().to_json();
        assert!(report["notes"].to_string().contains("not in shared memory"), "{report}");
        let tables = report["tables"].as_array().unwrap();
        assert_eq!(tables.len(), 5);
        let figure = |number: usize, column: &str| tables[number]["rows"][0][column]["median"].as_f64();
        assert!(figure(0, "read_us").unwrap() > 0.0 && figure(0, "echo_us").unwrap() > 0.0);
        assert!(figure(1, "rc_write_mops").unwrap() > 0.0);
        assert_eq!(tables[1]["rows"][0]["paper_write_mops"], 35);
        assert!(figure(2, "rc_read_mops").unwrap() > 0.0);
        let echoes = tables[3]["rows"].as_array().unwrap();
        assert_eq!(echoes.len(), 3);
        assert!(echoes.iter().all(|row| row["basic_mops"]["median"].as_f64().unwrap() > 0.0));
    }

    #[test]
    fn an_interrupt_ends_it_with_a_problem() {
        let stage = Stage::new(1, Duration::from_millis(2), 0).unwrap();
        let plan = HerdPlan {
            figures: vec![HerdFigure::Latency],
            lens_bytes: vec![],
            window: 8,
            connections: 1,
            last_byte: LastByte::IfPromised,
        };
        let chosen = Selection::softnic().choose().unwrap();
        assert!(!run(&chosen, &stage, &plan, &mut |_| false).unwrap().is_sound());
    }
}
