//! `farcall rpc bench`: the round trip of a small call.

use crate::console::{Console, spinner};
use crate::failure::{Exit, Failure};
use crate::signals::StopFlag;
use clap::Args;
use farcall_bench::experiments::{Stage, rpc_echo};
use std::time::Duration;

/// Measure echo calls (64 B there, 8 B back) beside bare ping-pongs, sockets and UCX.
///
/// Starts an echo service of its own, pinned to one core, with the client pinned to another. All rivals are measured
/// interleaved. On one host the software RNIC measures inter-process communication, not a network.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall rpc bench\n  farcall rpc bench --against ucx --json | jq '.tables[0].rows'"
)]
pub struct Bench {
    /// How often each figure is taken.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    duration_ms: u64,
    /// Measure another system in the same run.
    #[arg(long)]
    against: Option<crate::commands::perf::Rival>,
}

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    /// When it cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let stop = StopFlag::install()?;
        let stage = Stage::new(self.repetitions, Duration::from_millis(self.duration_ms), 0)
            .map_err(|error| Failure::because("cannot prepare the measurement", &error))?;
        let line = spinner();
        let report = rpc_echo::run(&stage, self.against.is_some(), &mut |what: &str| {
            line.set_message(what.to_owned());
            !stop.is_raised()
        })
        .map_err(|error| {
            Failure::because("cannot measure echo calls", &error)
                .remedy("see what is missing: farcall doctor")
        })?;
        line.finish_and_clear();
        console.say(&report, &report.to_json())?;
        Ok(match (stop.is_raised(), report.is_sound()) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Success,
            (false, false) => Exit::Failure,
        })
    }
}
