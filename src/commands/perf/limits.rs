//! `farcall perf limits`.

use crate::commands::measuring::{Rival, StageArgs};
use crate::failure::Failure;
use clap::Args;
use farcall_bench::experiments::{Progress, limits};
use farcall_bench::report::Report;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall perf limits\n  farcall perf limits --against ucx --json")]
pub(super) struct LimitsArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Measure another system in the same run.
    #[arg(long)]
    against: Option<Rival>,
}

impl LimitsArgs {
    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        limits::run(&self.stage.stage(0)?, self.against == Some(Rival::Ucx), progress)
            .map_err(|error| Failure::because("cannot measure the limits of this machine", &error))
    }
}
