//! `farcall perf`: what this machine and its RNIC can do.

use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::{Args, Subcommand, ValueEnum};
use farcall_bench::experiments::{Stage, limits};
use std::time::Duration;

/// Measure latency, rate and bandwidth between two pinned processes.
///
/// All rivals are measured in one run, interleaved; figures are medians with ranges over the repetitions.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall perf limits                    what bare memory and sockets can do here\n  \
                        farcall perf limits --against ucx --json"
)]
pub struct Perf {
    #[command(subcommand)]
    what: What,
    /// How often each figure is taken.
    #[arg(long, default_value_t = 5, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 300, global = true, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration_ms: u64,
    /// Measure another system in the same run.
    #[arg(long, global = true)]
    against: Option<Rival>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rival {
    /// ucx_perftest over shared memory (Debian: ucx-utils).
    Ucx,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The bare limits: shared cache lines, copies, sockets, eventfds, system calls.
    Limits,
}

impl Perf {
    /// Measures.
    ///
    /// # Errors
    /// When something cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let stage = Stage::new(self.repetitions, Duration::from_millis(self.duration_ms), 0)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))?;
        let line = spinner();
        let mut progress = |what: &str| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        };
        let report = match self.what {
            What::Limits => limits::run(&stage, self.against == Some(Rival::Ucx), &mut progress)
                .map_err(|error| Failure::because("cannot measure the limits of this machine", &error))?,
        };
        line.finish_and_clear();
        console.say(&report, &report.to_json())?;
        Ok(match (stop.is_raised(), report.is_sound()) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Success,
            (false, false) => Exit::Failure,
        })
    }
}
