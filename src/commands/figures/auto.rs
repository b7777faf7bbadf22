//! `farcall figures auto`.

use crate::commands::halves::{HalvesArgs, cannot_measure};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::figures::auto;

/// Measure what clients choose by themselves on the papers' workloads, beside the best preset.
///
/// Every workload is measured under every preset and under the choice, interleaved. Prints for each the ratio of the
/// choice to the best preset, by pairs of repetitions, and between which bounds it lies. By default about two minutes.
///
/// Between two hosts each does its half: --listen, --connect. What clients choose there is what counts for an RNIC.
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
    stage: StageArgs,
    #[command(flatten)]
    halves: HalvesArgs,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Auto {
    /// Measures, and prints the report.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.halves.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let (chosen, stage) = (self.nic.choose()?, self.halves.stage(&self.stage, self.seed)?);
        measuring::run(console, |progress| {
            auto(&chosen, &stage, progress)
                .map_err(|error| cannot_measure("cannot measure what is chosen", &*error, &stage))
        })
    }
}
