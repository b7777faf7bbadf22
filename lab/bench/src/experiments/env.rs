//! Environment of every experiment: cores, durations, repetitions and progress reports.

use crate::measure::{CoreError, Cores};
use crate::peer::{PairPlan, PeerLauncher, Run};
use crate::report::{Conditions, Report};
use farcall::select::ProviderChoice;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Called with a description of the next step. Returns whether to continue.
pub type Progress<'a> = &'a mut dyn FnMut(&str) -> bool;

/// Common settings of an experiment's measurements.
#[derive(Debug, Clone)]
pub struct ExperimentEnv {
    /// Launcher of this program for peer processes.
    pub launcher: PeerLauncher,
    /// Core of the serving end.
    pub server_core: usize,
    /// Core of the measuring end.
    pub client_core: usize,
    /// Number of times that each figure is measured.
    pub repetitions: u32,
    /// Unrecorded start of each measurement.
    pub warm_up: Duration,
    /// Recorded period of each measurement.
    pub duration: Duration,
    /// Seed of all random choices.
    pub seed: u64,
    cores: Cores,
    /// Time at which an experiment ends, complete or not.
    deadline: Option<Instant>,
    /// Server half, if the serving end runs there.
    run: Option<Arc<Run>>,
}

/// A subject of an experiment, with its samples in the order of the repetitions.
#[derive(Debug)]
pub(crate) struct Sampled<T, S> {
    pub(crate) subject: T,
    pub(crate) samples: Vec<S>,
}

/// Default recorded period: the default of `--duration-ms`.
const USUAL_DURATION: Duration = Duration::from_millis(400);

/// Note of a report that is measured between two halves.
const HALVES_NOTICE: &str =
    "Measured between two halves: what lies between their hosts is in the figures; the conditions name both.";

/// Minimum scale, below which figures are meaningless.
const SCALE_MIN: f64 = 0.125;

impl ExperimentEnv {
    /// Creates a env on the first two cores that this process may use.
    ///
    /// # Errors
    /// Returns an error if the system does not report those cores.
    pub fn new(repetitions: u32, duration: Duration, seed: u64) -> Result<Self, CoreError> {
        let cores = Cores::allowed()?;
        let (server_core, client_core) = cores.server_and_client();
        Ok(Self {
            launcher: PeerLauncher::this_program(),
            server_core,
            client_core,
            repetitions: repetitions.max(1),
            // Long enough for caches, branch predictors and the clock frequency to settle.
            warm_up: (duration / 5).min(Duration::from_millis(200)),
            duration,
            seed,
            cores,
            deadline: None,
            run: None,
        })
    }

    /// Returns the env with its serving end at a server half.
    #[must_use]
    pub fn with_server_half(self, run: Run) -> Self {
        Self { run: Some(Arc::new(run)), ..self }
    }

    /// Returns the env with a deadline `limit` from now, at which it ends, complete or not.
    #[must_use]
    pub(crate) fn ending_within(self, limit: Duration) -> Self {
        Self { deadline: Some(Instant::now() + limit), ..self }
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns all cores that may be used.
    pub(crate) fn all_cores(&self) -> &[usize] {
        self.cores.as_slice()
    }

    /// Returns the cores of a server with `threads` threads on this host.
    pub(crate) fn server_cores(&self, threads: u16) -> Vec<usize> {
        self.cores.of_server(threads)
    }

    /// Returns the core of client process `number`.
    pub(crate) fn core_of_client(&self, number: u32) -> usize {
        self.cores.of_client(number)
    }

    /// Returns the server half, if the serving end runs there.
    pub fn server_half(&self) -> Option<&Run> {
        self.run.as_deref()
    }

    /// Scales a time other than the measurements themselves: returns `usual`, or less if the environment's measurements are
    /// shorter than the default.
    pub fn scaled(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.duration.div_duration_f64(USUAL_DURATION).clamp(SCALE_MIN, 1.0))
    }

    /// Returns the env with times divided by `parts`, for experiments with many measurements.
    pub fn shortened(&self, parts: u32) -> Self {
        let mut env = self.clone();
        (env.warm_up, env.duration) = (self.warm_up / parts, self.duration / parts);
        env
    }

    /// Returns the plan of one measurement on these cores.
    pub fn pair_plan(&self) -> PairPlan {
        PairPlan {
            launcher: self.launcher.clone(),
            server_core: self.server_core,
            server_half: self.run.as_ref().map(|run| run.agent().clone()),
            client_core: self.client_core,
            warm_up: self.warm_up,
            duration: self.duration,
        }
    }

    /// Returns the conditions of every figure taken on this env.
    pub fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::of_this_machine();
        if let Some(run) = &self.run {
            conditions
                .push("client half", format!("this host, core {}: measured everything", self.client_core));
            let about: Vec<_> = run.about().iter().map(|(name, value)| format!("{name} {value}")).collect();
            let about = about.join(", ");
            let reported = "reported its own CPU time";
            conditions.push("server half", format!("{} ({about}): {reported}", run.agent().address()));
        } else {
            conditions.push(
                "pinning",
                format!("server on core {}, client on core {}", self.server_core, self.client_core),
            );
        }
        conditions.push(
            "repetitions",
            format!(
                "{} of {} ms each, interleaved; medians with ranges",
                self.repetitions,
                self.duration.as_millis()
            ),
        );
        conditions.push("seed", self.seed.to_string());
        conditions
    }

    /// Returns an empty report of measurements over `provider`. Its first notes state what lies between the two ends, and
    /// whether they share a core.
    pub(crate) fn report(
        &self,
        title: impl Into<String>,
        conditions: Conditions,
        provider: ProviderChoice,
    ) -> Report {
        let report = Report::new(title, conditions);
        let mut report = match self.run {
            Some(_) => Report { notes: vec![HALVES_NOTICE.to_owned()], ..report },
            None => report.over(provider),
        };
        report.notes.extend(self.single_core_note());
        report
    }

    /// Returns a note if both ends share a core.
    pub fn single_core_note(&self) -> Option<String> {
        (!self.cores.has_two() && self.run.is_none()).then(|| {
            "Only one core may be used: both ends share it, so these figures measure the scheduler."
                .to_owned()
        })
    }

    /// Takes one measurement of each subject in turn, as [`Self::interleave`] does. `measure` returns the samples of a
    /// measurement.
    ///
    /// # Errors
    /// Those of [`Self::interleave`].
    pub(crate) fn sample<T, S, I: IntoIterator<Item = S>, E: fmt::Display>(
        &self,
        subjects: impl IntoIterator<Item = T>,
        report: &mut Report,
        progress: Progress<'_>,
        title: impl Fn(&T) -> String,
        mut measure: impl FnMut(&mut T, u32, &mut Report) -> Result<I, E>,
    ) -> Result<Vec<Sampled<T, S>>, E> {
        let sampled = |subject| Sampled { subject, samples: Vec::new() };
        let mut all: Vec<_> = subjects.into_iter().map(sampled).collect();
        self.interleave(
            &mut all,
            report,
            progress,
            |it| title(&it.subject),
            |it, repetition, report| {
                it.samples.extend(measure(&mut it.subject, repetition, report)?);
                Ok::<(), E>(())
            },
        )?;
        Ok(all)
    }

    /// Takes one measurement of each line in turn, for the number of repetitions. `measure` receives the repetition,
    /// counted from 1. Returns whether all measurements were taken; an early end by `progress` or by an error is a
    /// problem of the report.
    ///
    /// # Errors
    /// Returns the error of the very first measurement, after which there is nothing to report.
    pub fn interleave<L, E: fmt::Display>(
        &self,
        lines: &mut [L],
        report: &mut Report,
        progress: Progress<'_>,
        title: impl Fn(&L) -> String,
        mut measure: impl FnMut(&mut L, u32, &mut Report) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut has_any = false;
        for repetition in 1..=self.repetitions {
            for line in &mut *lines {
                if !report.goes_on(progress(&format!(
                    "{} ({repetition} of {})",
                    title(line),
                    self.repetitions
                ))) {
                    return Ok(false);
                }
                match measure(line, repetition, report) {
                    Ok(()) => has_any = true,
                    Err(error) if has_any => {
                        let title = title(line);
                        report.problems.push(format!("{title}: {error}; the results before it are reported"));
                        if let Some(run) = self.run.as_ref().filter(|run| run.is_lost()) {
                            report
                                .problems
                                .push(format!("the server half at {} is gone", run.agent().address()));
                        }
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }
}

/// Returns the condition that states when operations begin.
pub(super) fn load_condition(rate: Option<u32>) -> String {
    rate.map_or_else(
        || "closed: an operation begins when another has ended".to_owned(),
        |rate| format!("open: {rate} a second at fixed intervals; latencies count from the intended times"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures until the measurement with this number fails. Returns the number of measurements, whether all were
    /// taken, and the report.
    fn interleave_until(fails: u32) -> Result<(u32, bool, Report), &'static str> {
        let env = ExperimentEnv::new(3, Duration::from_millis(1), 0).unwrap();
        let mut report = Report::default();
        let mut taken = 0;
        let mut measure = |_: &mut &str, _, _: &mut Report| {
            if taken + 1 == fails {
                return Err("no luck");
            }
            taken += 1;
            Ok(())
        };
        let mut lines = ["a", "b"];
        let is_complete =
            env.interleave(&mut lines, &mut report, &mut |_| true, |line| (*line).to_owned(), &mut measure)?;
        Ok((taken, is_complete, report))
    }

    #[test]
    fn other_times_shrink_with_short_measurements_and_never_grow() {
        let scaled = |duration_ms| {
            let env = ExperimentEnv::new(1, Duration::from_millis(duration_ms), 0).unwrap();
            env.scaled(Duration::from_millis(800)).as_millis()
        };
        assert_eq!([1, 50, 200, 400, 5_000].map(scaled), [100, 100, 400, 800, 800]);
    }

    #[test]
    fn a_failure_keeps_what_was_measured_before() {
        assert_eq!(interleave_until(1).unwrap_err(), "no luck", "there is nothing to keep");
        let (taken, is_complete, report) = interleave_until(4).unwrap();
        assert_eq!((taken, is_complete), (3, false));
        assert_eq!(report.problems, ["b: no luck; the results before it are reported"]);
        let (taken, is_complete, report) = interleave_until(7).unwrap();
        assert!(taken == 6 && is_complete && report.is_sound());
    }
}
