//! Common parts of the commands that measure: repetitions and duration, the progress line, the report, the exit code.

use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use crate::whole_file;
use clap::{Args, ValueEnum};
use farcall_bench::experiments::{ExperimentEnv, Progress};
use farcall_bench::measure::contention_warning;
use farcall_bench::report::{Report, Wide};
use std::path::PathBuf;
use std::time::Duration;

/// Number and duration of measurements.
#[derive(Debug, Clone, Args)]
pub struct RepetitionArgs {
    /// Number of times that each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Duration of each measurement in milliseconds. A value below the default also shortens the other phases of an
    /// experiment.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration_ms: u64,
}

/// Output as a page.
#[derive(Debug, Clone, Default, Args)]
pub struct HtmlArg {
    /// Also write the report to an HTML file with bars and tables, which needs no network. No effect with --listen.
    #[arg(long, value_name = "FILE", global = true)]
    html: Option<PathBuf>,
}

/// System that is measured in the same run, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComparedSystem {
    /// ucx_perftest over shared memory (Debian: apt-get install ucx-utils).
    Ucx,
}

impl RepetitionArgs {
    /// Returns the environment of an experiment with these repetitions and durations.
    ///
    /// # Errors
    /// If the system does not report the permitted cores.
    pub fn env(&self, seed: u64) -> Result<ExperimentEnv, Failure> {
        ExperimentEnv::new(self.repetitions, Duration::from_millis(self.duration_ms), seed)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))
    }
}

/// Runs an experiment and prints its report; Ctrl-C ends it early.
///
/// # Errors
/// Returns the failure of the experiment.
pub fn run(
    console: Console,
    experiment: impl FnOnce(Progress<'_>) -> Result<Report, Failure>,
) -> Result<Exit, Failure> {
    run_with_html(console, &HtmlArg::default(), experiment)
}

/// Like [`run`], and writes the report as a page if one is requested.
///
/// # Errors
/// Returns the failure of the experiment; also fails if the page cannot be written.
pub fn run_with_html(
    console: Console,
    html: &HtmlArg,
    experiment: impl FnOnce(Progress<'_>) -> Result<Report, Failure>,
) -> Result<Exit, Failure> {
    run_with_warning(console, html, contention_warning(), experiment)
}

/// Runs an experiment that samples contention itself, because its limits or its recommendation depend on it. A second
/// sample taken here might differ.
///
/// # Errors
/// Returns the failure of the experiment.
pub fn run_self_warning(
    console: Console,
    html: &HtmlArg,
    experiment: impl FnOnce(Progress<'_>) -> Result<Report, Failure>,
) -> Result<Exit, Failure> {
    run_with_warning(console, html, None, experiment)
}

fn run_with_warning(
    console: Console,
    html: &HtmlArg,
    warning: Option<String>,
    experiment: impl FnOnce(Progress<'_>) -> Result<Report, Failure>,
) -> Result<Exit, Failure> {
    let stop = StopFlag::install()?;
    let line = spinner();
    let report = experiment(&mut |what: &str| {
        line.set_message(what.to_owned());
        !stop.is_raised()
    });
    line.finish_and_clear();
    let mut report = match report {
        // A failure after the interrupt is a consequence of it.
        Err(_) if stop.is_raised_soon() => {
            eprintln!("interrupted before the end; there is no report");
            return Ok(Exit::Interrupted);
        }
        report => report?,
    };
    if !report.is_sound() && stop.is_raised_soon() {
        report.interrupted();
    }
    warning.into_iter().for_each(|warning| report.warn(warning));
    let json = report.to_json();
    if console.is_wide {
        console.print(&Wide(&report), &json)?;
    } else {
        console.print(&report, &json)?;
    }
    if let Some(path) = &html.html {
        whole_file::write(path, report.to_html().as_bytes()).map_err(|error| {
            Failure::because("cannot write the page", &error)
                .at(path.display())
                .remedy("name a file in a directory that you may write: --html FILE")
        })?;
    }
    Ok(match (stop.is_raised(), report.is_sound()) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Success,
        (false, false) => Exit::Failure,
    })
}
