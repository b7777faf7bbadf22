//! `farcall figures auto`.

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
#[derive(Debug, Args)]
#[command(
    mut_arg("repetitions", |arg| arg.default_value("6")),
    mut_arg("duration_ms", |arg| arg.default_value("100")),
    after_help = "Examples:\n  farcall figures auto\n  farcall figures auto --repetitions 12 --duration-ms 400 --json"
)]
pub struct Auto {
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Auto {
    /// Measures and prints.
    ///
    /// # Errors
    /// When it cannot be measured.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let (chosen, stage) = (self.nic.choose()?, self.stage.stage(self.seed)?);
        measuring::run(console, |progress| {
            auto(&chosen, &stage, progress).map_err(|error| {
                Failure::because("cannot measure what is chosen", &*error)
                    .remedy("see what is missing: farcall doctor")
            })
        })
    }
}
