//! `farcall figures auto`.

use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::{RemoteArgs, cannot_measure};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::figures::auto;

/// Measure the preset that clients choose on the workloads of the papers, compared with the best.
///
/// Every workload is measured with every preset and with the chosen one, interleaved. Prints the ratio of the chosen to
/// the best preset for each workload, by pairs of repetitions, with its bounds. Takes about two minutes by default.
///
/// To measure between two hosts, start one half on each (--listen, --connect). For an RNIC, only this result is
/// relevant.
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("6")),
    mut_arg("duration_ms", |arg| arg.default_value("100")),
    after_help = "Examples:\n  farcall figures auto\n  farcall figures auto --repetitions 12 --duration-ms 400 --json\n  \
                  farcall figures auto --listen 0.0.0.0:11400 --provider ibv      on the server's host, and on the client's:\n  \
                  farcall figures auto --connect server:11400 --provider ibv"
)]
pub struct Auto {
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Auto {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let (selected, env) = (self.nic.open()?, self.remote.env(&self.repeat, self.seed)?);
        bench_args::run(console, |progress| {
            auto(&selected, &env, progress)
                .map_err(|error| cannot_measure("cannot measure the chosen preset", &*error, &env))
        })
    }
}
