//! `farcall bench verbs limits`.

use crate::commands::bench_args::{ComparedSystem, RepetitionArgs};
use crate::failure::Failure;
use clap::Args;
use farcall_bench::experiments::{Progress, limits};
use farcall_bench::report::Report;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  farcall bench verbs limits\n  farcall bench verbs limits --against ucx --json"
)]
pub(super) struct LimitsArgs {
    #[command(flatten)]
    repeat: RepetitionArgs,
    /// Also measure this system in the same run.
    #[arg(long)]
    against: Option<ComparedSystem>,
}

impl LimitsArgs {
    pub(super) fn measure(&self, progress: Progress<'_>) -> Result<Report, Failure> {
        limits::run(&self.repeat.env(0)?, self.against == Some(ComparedSystem::Ucx), progress)
            .map_err(|error| Failure::because("cannot measure the limits of this machine", &error))
    }
}
