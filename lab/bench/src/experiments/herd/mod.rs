//! The verb micro-benchmarks of HERD ("Using RDMA Efficiently for Key-Value Services", section 3), one file per
//! figure, with the published values next to those measured here.
//!
//! One process represents all clients, one the server.

mod echo;
pub(crate) mod grid;
mod latency;
mod published;
mod throughput;

use super::env::{ExperimentEnv, Progress};
use super::perf::new_report;
use crate::report::Report;
use crate::rnic::{RnicError, Survey};
use farcall::select::SelectedNic;
use grid::Grid;

/// A figure of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HerdFigure {
    /// Figure 2: latency of READ, WRITE, inlined WRITE and ECHO.
    Latency,
    /// Throughput of one initiator.
    Throughput,
    /// Throughput of ECHO with the optimisations added one by one.
    Echo,
}

impl HerdFigure {
    /// All figures.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Throughput, Self::Echo];
}

/// Plan of the experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HerdPlan {
    /// Figures to measure.
    pub figures: Vec<HerdFigure>,
    /// Lengths of messages in bytes; if empty, those of each figure.
    pub lens_bytes: Vec<usize>,
    /// Requests outstanding on each connection.
    pub window: u32,
    /// Number of connections, which represent the paper's client processes.
    pub connections: u32,
    /// `true` if WRITEs are detected by their last byte even on devices that do not guarantee to place it last.
    pub assumes_order: bool,
}

/// Measures the figures.
///
/// # Errors
/// Returns an error if a measurement fails. Missing capabilities of the device are notes.
pub fn run(
    chosen: &SelectedNic,
    env: &ExperimentEnv,
    plan: &HerdPlan,
    progress: Progress<'_>,
) -> Result<Report, RnicError> {
    let survey = Survey::of(&chosen.nic);
    let mut report = new_report("HERD's micro-benchmarks", chosen, env, &survey);
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
        grid.leave_out_what_cannot_be(&survey, &mut report)?;
    }
    let is_complete = env.interleave(
        &mut grids.iter_mut().flat_map(|(_, grid)| grid.points()).collect::<Vec<_>>(),
        &mut report,
        progress,
        |point| point.subject.to_string(),
        |point, _, report| {
            point.samples.extend(point.subject.measure(chosen, env, None, report)?);
            Ok::<(), RnicError>(())
        },
    )?;
    if is_complete {
        report.tables.extend(grids.iter().map(|(_, grid)| grid.table()));
        report.tables.push(published::claims_table(&grids));
    }
    Ok(report)
}

impl HerdFigure {
    pub(crate) fn grid(self, plan: &HerdPlan) -> Grid {
        match self {
            Self::Latency => latency::grid(plan),
            Self::Throughput => throughput::grid(plan),
            Self::Echo => echo::grid(plan),
        }
    }
}

impl HerdPlan {
    /// Returns the specified lengths, or those of a figure.
    fn lens_bytes_or(&self, of_figure: &[usize]) -> Vec<usize> {
        if self.lens_bytes.is_empty() { of_figure.to_vec() } else { self.lens_bytes.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::select::Selection;

    #[test]
    fn every_figure_has_its_table_and_the_papers_words() {
        let env = crate::peer::tests::env(2);
        let plan = HerdPlan {
            figures: HerdFigure::ALL.to_vec(),
            lens_bytes: vec![32],
            window: 8,
            connections: 2,
            assumes_order: false,
        };
        let chosen = Selection::softnic().open().unwrap();
        let report = run(&chosen, &env, &plan, &mut |_| true).unwrap().to_json();
        assert!(report["notes"].to_string().contains("not measured here"), "{report}");
        let tables = report["tables"].as_array().unwrap();
        assert_eq!(tables.len(), 4);
        let figure = |number: usize, column: &str| tables[number]["rows"][0][column]["median"].as_f64();
        assert!(figure(0, "read_us").unwrap() > 0.0 && figure(0, "echo_us").unwrap() > 0.0);
        assert!(figure(1, "rc_write_mops").unwrap() > 0.0);
        assert!(figure(1, "rc_read_mops").unwrap() > 0.0);
        let echoes = tables[2]["rows"].as_array().unwrap();
        assert_eq!(echoes.len(), 3);
        assert!(echoes.iter().all(|row| row["basic_mops"]["median"].as_f64().unwrap() > 0.0));
    }

    #[test]
    fn an_interrupt_ends_it_with_a_problem() {
        let env = crate::peer::tests::env(2);
        let plan = HerdPlan {
            figures: vec![HerdFigure::Latency],
            lens_bytes: vec![],
            window: 8,
            connections: 1,
            assumes_order: false,
        };
        let chosen = Selection::softnic().open().unwrap();
        assert!(!run(&chosen, &env, &plan, &mut |_| false).unwrap().is_sound());
    }
}
