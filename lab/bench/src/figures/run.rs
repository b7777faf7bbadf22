//! Measures experiments one after another; within one, all curves are interleaved.

use super::experiment::Experiment;
use super::papers;
use super::results::{FORMAT, Measured, Outcome, Results, Series};
use super::servers::Servers;
use super::trial::{Point, Trial};
use super::tuned::windows;
use crate::experiments::{ExperimentEnv, Progress};
use crate::measure::Spread;
use crate::report::Report;
use farcall::select::SelectedNic;
use farcall_verbs::with_sources;

/// Plan of a run.
pub struct RunPlan<'a> {
    /// Experiments to measure.
    pub experiments: &'a [&'static Experiment],
    /// The provider of both ends.
    pub chosen: &'a SelectedNic,
    /// Cores, durations, repetitions, seed.
    pub env: &'a ExperimentEnv,
}

/// A trial with the points of all repetitions.
struct MeasuredSeries {
    trial: Trial,
    points: Vec<Point>,
}

/// Runs all experiments of `plan` until `progress` ends the run. `keep` receives the results after each experiment, so
/// that a program that is killed retains the completed ones.
pub fn run(plan: &RunPlan<'_>, progress: Progress<'_>, mut keep: impl FnMut(&Results)) -> Results {
    let mut conditions = plan.env.conditions();
    conditions.push("provider", plan.chosen.selection.provider.name());
    conditions.push("because", plan.chosen.explanation.clone());
    if plan.env.server_half().is_some() {
        conditions.push("one host only", "bare limits and whatever else is of one host is left out");
    }
    let report = plan.env.report("", conditions, plan.chosen.selection.provider);
    let mut results = Results {
        farcall_figures: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        provider: plan.chosen.selection.provider.name().to_owned(),
        seed: plan.env.seed,
        conditions: report.conditions.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        notes: report.notes,
        experiments: Vec::new(),
        findings: Vec::new(),
        is_complete: false,
    };
    let mut servers = Servers::new(plan.chosen, plan.env);
    let (mut goes_on, mut is_reachable) = (true, true);
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
        if let Some(half) = plan.env.server_half().filter(|half| half.is_lost()) {
            // All further experiments would fail.
            is_reachable = false;
            let address = half.agent().address();
            results.notes.push(format!("The server half at {address} is gone: the rest was not measured."));
            break;
        }
    }
    results.is_complete = goes_on && is_reachable;
    keep(&results);
    results
}

/// Runs one experiment.
fn measure(experiment: &Experiment, servers: &mut Servers<'_>, progress: Progress<'_>) -> Outcome {
    let mut outcome = Outcome::new(experiment);
    if experiment.not_yet.is_some() {
        return outcome;
    }
    let env = servers.env;
    let (trials, one_host_only): (Vec<Trial>, Vec<Trial>) = (experiment.trials)()
        .into_iter()
        .partition(|trial| env.server_half().is_none() || trial.spans_hosts());
    outcome.differs.extend(ends(env, &one_host_only));
    let mut taken: Vec<MeasuredSeries> =
        trials.into_iter().map(|trial| MeasuredSeries { trial, points: Vec::new() }).collect();
    let mut report = Report::default();
    let measured = env.interleave(
        &mut taken,
        &mut report,
        progress,
        |taken| format!("{}: {}", experiment.id, taken.trial),
        |taken, repetition, report| {
            taken.points.extend(taken.trial.take(servers, repetition, report)?);
            Ok::<(), crate::experiments::ExperimentError>(())
        },
    );
    servers.end_experiment();
    if let Err(error) = measured {
        report.problems.push(with_sources(&*error));
    }
    outcome.measured = curves(&taken);
    outcome.notes = report.notes;
    let rates = taken.iter().filter_map(|taken| Some((taken.trial.series, taken.trial.tuned()?)));
    outcome.notes.extend(windows(rates));
    outcome.problems = report.problems;
    outcome
}

/// Returns notes on the location of the two ends, and on the trials that cannot be measured there.
fn ends(env: &ExperimentEnv, one_host_only: &[Trial]) -> Vec<String> {
    let ends = match env.server_half() {
        Some(run) => {
            format!("Between a process of this host and the server half at {}.", run.agent().address())
        }
        None => "Between two processes of one host.".to_owned(),
    };
    let mut names: Vec<&str> = one_host_only.iter().map(|trial| trial.series).collect();
    names.dedup();
    let left_out = (!names.is_empty()).then(|| format!("One host only, left out: {}.", names.join("; ")));
    [ends].into_iter().chain(left_out).collect()
}

/// Returns the points of each curve, with their repetitions combined.
fn curves(taken: &[MeasuredSeries]) -> Vec<Series> {
    let mut curves: Vec<Series> = Vec::new();
    for MeasuredSeries { trial, points } in taken {
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
