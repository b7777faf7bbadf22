//! `farcall tune`: what a connection can do here, kept for clients.

mod profile_arg;
mod profile_file;

use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_bench::experiments::tune;
pub use profile_arg::ProfileArg;
use profile_file::ProfileFile;
use std::path::PathBuf;

/// Measure READs and replies of a provider, and write them to a profile for clients.
///
/// Starts an echo service of its own, pinned to one core, with the client pinned to another. Prints what READs cost by
/// size, what a reply costs, and which R, F and N of the RF-RPC paper follow. A profile is taken by kv bench and rpc
/// bench (--profile FILE); it holds for this device and this version of farcall.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall tune\n  farcall tune --provider ibv --out rnic.json\n  \
                        farcall rpc bench --provider ibv --profile rnic.json")]
pub struct Tune {
    /// Where to write the profile; by default in a directory of this user's own, named after the device.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
}

impl Tune {
    /// Measures, prints and writes.
    ///
    /// # Errors
    /// When it cannot be measured, or the profile not be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let chosen = self.nic.choose()?;
        let device = profile_file::device_of(&chosen)?;
        let out = self.out.map_or_else(|| profile_file::usual_place(&device), Ok)?;
        let stage = self.stage.stage(0)?;
        measuring::run(console, |progress| {
            let (mut report, profile) = tune::run(&stage, &chosen.selection, progress).map_err(|error| {
                Failure::because("cannot measure what a connection can do", &*error)
                    .remedy("see what is missing: farcall doctor")
            })?;
            if let Some(profile) = profile {
                ProfileFile::new(&device, &profile).write(&out)?;
                report.conditions.push("profile", out.display().to_string());
            }
            Ok(report)
        })
    }
}
