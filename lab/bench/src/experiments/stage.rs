//! What every experiment needs to know: cores, durations, repetitions, and how to say how far it is.

use crate::measure::{CoreError, Cores};
use crate::peer::{PairPlan, PeerLauncher, Run};
use crate::report::{Conditions, Report};
use farcall::select::Wish;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Called with what an experiment is about to do. Returns whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(&str) -> bool;

/// The common ground of an experiment's measurements.
#[derive(Debug, Clone)]
pub struct Stage {
    /// How to start this program again.
    pub launcher: PeerLauncher,
    /// Core of the serving end.
    pub server_core: usize,
    /// Core of the measuring end.
    pub client_core: usize,
    /// How often each figure is taken.
    pub repetitions: u32,
    /// Unrecorded start of each measurement.
    pub warm_up: Duration,
    /// Recorded stretch of each measurement.
    pub duration: Duration,
    /// Seed of everything random.
    pub seed: u64,
    cores: Cores,
    /// When an experiment ends, complete or not.
    deadline: Option<Instant>,
    /// The serving end, if it is a server half.
    run: Option<Arc<Run>>,
}

/// The usual recorded stretch: what `--duration-ms` is by default.
const USUAL_DURATION: Duration = Duration::from_millis(400);

/// What a report says that is measured between two halves.
const HALVES_NOTICE: &str =
    "Measured between two halves: what lies between their hosts is in the figures; the conditions name both.";

/// Below this part of what is usual, figures say nothing.
const SCALE_MIN: f64 = 0.125;

impl Stage {
    /// On the first two cores this process may use.
    ///
    /// # Errors
    /// When the system does not tell which cores those are.
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

    /// The same with the serving end at a server half.
    #[must_use]
    pub fn with_server_half(self, run: Run) -> Self {
        Self { run: Some(Arc::new(run)), ..self }
    }

    /// The same, to end within `limit` from now, complete or not.
    #[must_use]
    pub(crate) fn ending_within(self, limit: Duration) -> Self {
        Self { deadline: Some(Instant::now() + limit), ..self }
    }

    /// Whether an experiment has to end now.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// All cores that may be used.
    pub(crate) fn all_cores(&self) -> &[usize] {
        self.cores.as_slice()
    }

    /// Cores of a server of so many threads on this host.
    pub(crate) fn server_cores(&self, threads: u16) -> Vec<usize> {
        self.cores.of_server(threads)
    }

    /// The core of a client process.
    pub(crate) fn core_of_client(&self, number: u32) -> usize {
        self.cores.of_client(number)
    }

    /// The server half, if the serving end is one.
    #[must_use]
    pub fn server_half(&self) -> Option<&Run> {
        self.run.as_deref()
    }

    /// A time that an experiment takes besides: `usual`, or less if the stage's measurements are shorter than usual.
    #[must_use]
    pub fn scaled(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.duration.div_duration_f64(USUAL_DURATION).clamp(SCALE_MIN, 1.0))
    }

    /// The same for measurements that take a part of the time, because there are many.
    #[must_use]
    pub fn shortened(&self, parts: u32) -> Self {
        let mut stage = self.clone();
        (stage.warm_up, stage.duration) = (self.warm_up / parts, self.duration / parts);
        stage
    }

    /// The plan of one measurement on these cores.
    #[must_use]
    pub fn pair_plan(&self) -> PairPlan {
        PairPlan {
            launcher: self.launcher.clone(),
            server_core: self.server_core,
            server_half: self.run.as_ref().map(|run| run.far().clone()),
            client_core: self.client_core,
            warm_up: self.warm_up,
            duration: self.duration,
        }
    }

    /// The conditions of every figure taken here.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::of_this_machine();
        if let Some(run) = &self.run {
            conditions
                .push("client half", format!("this host, core {}: measured everything", self.client_core));
            let about: Vec<_> = run.about().iter().map(|(name, value)| format!("{name} {value}")).collect();
            let about = about.join(", ");
            let told = "told its own CPU time";
            conditions.push("server half", format!("{} ({about}): {told}", run.far().address()));
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

    /// An empty report of what is measured here over `provider`. Its first note says what lies between the ends.
    pub(crate) fn report(&self, title: impl Into<String>, conditions: Conditions, provider: Wish) -> Report {
        let report = Report::new(title, conditions);
        match self.run {
            Some(_) => Report { notes: vec![HALVES_NOTICE.to_owned()], ..report },
            None => report.over(provider),
        }
    }

    /// A note when both ends share a core.
    #[must_use]
    pub fn single_core_note(&self) -> Option<String> {
        (!self.cores.has_two() && self.run.is_none()).then(|| {
            "Only one core may be used: both ends share it, so these figures measure the scheduler."
                .to_owned()
        })
    }

    /// Takes one measurement of each line in turn, as often as this stage says. `measure` is told which repetition it
    /// is, from 1. Returns whether all were taken; that `progress` or an error ended it early is a problem of the
    /// report.
    ///
    /// # Errors
    /// The error of the very first measurement: then there is nothing to report.
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
                        report.problems.push(format!("{title}: {error}; what was measured before is told"));
                        if let Some(run) = self.run.as_ref().filter(|run| run.is_lost()) {
                            report
                                .problems
                                .push(format!("the server half at {} is gone", run.far().address()));
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

/// The condition that tells how operations begin.
pub(super) fn load_condition(rate: Option<u32>) -> String {
    rate.map_or_else(
        || "closed: an operation begins when another has ended".to_owned(),
        |rate| format!("open: {rate} a second at fixed intervals; latencies count from the intended times"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures until the measurement of this number fails; how many were taken, whether all were, and the report.
    fn interleave_until(fails: u32) -> Result<(u32, bool, Report), &'static str> {
        let stage = Stage::new(3, Duration::from_millis(1), 0).unwrap();
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
        let is_complete = stage.interleave(
            &mut lines,
            &mut report,
            &mut |_| true,
            |line| (*line).to_owned(),
            &mut measure,
        )?;
        Ok((taken, is_complete, report))
    }

    #[test]
    fn other_times_shrink_with_short_measurements_and_never_grow() {
        let scaled = |duration_ms| {
            let stage = Stage::new(1, Duration::from_millis(duration_ms), 0).unwrap();
            stage.scaled(Duration::from_millis(800)).as_millis()
        };
        assert_eq!([1, 50, 200, 400, 5_000].map(scaled), [100, 100, 400, 800, 800]);
    }

    #[test]
    fn a_failure_keeps_what_was_measured_before() {
        assert_eq!(interleave_until(1).unwrap_err(), "no luck", "there is nothing to keep");
        let (taken, is_complete, report) = interleave_until(4).unwrap();
        assert_eq!((taken, is_complete), (3, false));
        assert_eq!(report.problems, ["b: no luck; what was measured before is told"]);
        let (taken, is_complete, report) = interleave_until(7).unwrap();
        assert!(taken == 6 && is_complete && report.is_sound());
    }
}
