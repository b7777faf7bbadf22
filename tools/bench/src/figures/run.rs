//! Measuring experiments, one after the other; within one, all curves are interleaved.

use super::experiment::{Experiment, How};
use super::papers;
use super::results::{FORMAT, Measured, Outcome, Results, Series};
use super::servers::Servers;
use super::trial::{Point, Trial};
use crate::experiments::{Progress, Stage};
use crate::measure::Spread;
use crate::report::Report;
use farcall_providers::Chosen;

/// What to run, and how.
pub struct RunPlan<'a> {
    /// Which.
    pub experiments: &'a [&'static Experiment],
    /// The provider of both ends.
    pub chosen: &'a Chosen,
    /// Cores, durations, repetitions, seed.
    pub stage: &'a Stage,
}

/// A trial, and what each repetition of it gave.
struct Taken {
    trial: Trial,
    points: Vec<Point>,
}

/// Runs all of `plan` until `progress` ends it. `keep` sees the results after each experiment, so that a program that
/// is killed has those that were done.
pub fn run(plan: &RunPlan<'_>, progress: Progress<'_>, mut keep: impl FnMut(&Results)) -> Results {
    let mut conditions = plan.stage.conditions();
    conditions.push("provider", plan.chosen.selection.wish.name());
    conditions.push("because", plan.chosen.explanation.clone());
    let mut report = Report::new("", conditions).over(plan.chosen.selection.wish);
    report.notes.extend(plan.stage.single_core_note());
    let mut results = Results {
        farcall_figures: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        provider: plan.chosen.selection.wish.name().to_owned(),
        seed: plan.stage.seed,
        conditions: report.conditions.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        notes: report.notes,
        experiments: Vec::new(),
        findings: Vec::new(),
        is_complete: false,
    };
    let mut servers = Servers::new(plan.chosen, plan.stage);
    let mut goes_on = true;
    let mut watched = |what: &str| {
        goes_on = goes_on && progress(what);
        goes_on
    };
    for experiment in plan.experiments {
        if !watched(experiment.id) {
            break;
        }
        results.experiments.push(measure(experiment, &mut servers, &mut watched));
        results.findings = papers::findings(&results);
        keep(&results);
    }
    results.is_complete = goes_on;
    keep(&results);
    results
}

/// Runs one experiment.
fn measure(experiment: &Experiment, servers: &mut Servers<'_>, progress: Progress<'_>) -> Outcome {
    let mut outcome = Outcome::new(experiment);
    let How::Here { trials, .. } = experiment.how else { return outcome };
    let mut taken: Vec<Taken> =
        trials().into_iter().map(|trial| Taken { trial, points: Vec::new() }).collect();
    let mut report = Report::default();
    let stage = servers.stage;
    let measured = stage.interleave(
        &mut taken,
        &mut report,
        progress,
        |taken| format!("{}: {}", experiment.id, taken.trial),
        |taken, repetition, report| {
            taken.points.extend(taken.trial.take(servers, repetition, report)?);
            Ok::<(), crate::experiments::ExperimentError>(())
        },
    );
    if let Err(error) = measured {
        report.problems.push(error.to_string());
    }
    outcome.measured = curves(&taken);
    outcome.notes = report.notes;
    outcome.problems = report.problems;
    outcome
}

/// All points of each curve, their repetitions put together.
fn curves(taken: &[Taken]) -> Vec<Series> {
    let mut curves: Vec<Series> = Vec::new();
    for Taken { trial, points } in taken {
        let mut xs: Vec<Option<f64>> = Vec::new();
        points.iter().for_each(|point| {
            if !xs.contains(&point.x) {
                xs.push(point.x)
            }
        });
        let measured = xs.into_iter().filter_map(|x| {
            let ys = points.iter().filter(|point| point.x == x).map(|point| point.y);
            Some(Measured { x, y: Spread::of(ys)? })
        });
        match curves.iter_mut().find(|curve| curve.name == trial.series) {
            Some(curve) => curve.points.extend(measured),
            None => curves.push(Series { name: trial.series.to_owned(), points: measured.collect() }),
        }
    }
    curves.retain(|curve| !curve.points.is_empty());
    curves
}
