//! `farcall tune`: measures the properties of a connection and stores them for clients.

mod profile_arg;

use crate::commands::halves::{HalvesArgs, cannot_measure};
use crate::commands::measuring::{self, StageArgs};
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::whole_file;
use clap::Args;
use farcall::rpc::tune::{LinkProfile, ProfileFile, Scope};
use farcall_bench::experiments::tune;
pub use profile_arg::ProfileArg;
use profile_arg::scope_of;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Measure READs and replies of a provider, and write them to a profile for clients.
///
/// Starts an echo service of its own, pinned to one core, with the client pinned to another. Prints what READs cost by
/// size, what a reply costs, which R, F and N of the RF-RPC paper follow, and what suits posting and waiting. Clients
/// that choose their preset by themselves take the profile from its usual place; kv bench and rpc bench take it from
/// there or from another (--profile FILE). It holds for this device, for servers of this host, or with --connect of
/// others, and for this version of farcall.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall tune\n  farcall tune --provider ibv --out rnic.json\n  \
                        farcall rpc bench --provider ibv --profile rnic.json\n  \
                        farcall tune --provider ibv --listen 0.0.0.0:11400       on another host, then here:\n  \
                        farcall tune --provider ibv --connect server:11400")]
pub struct Tune {
    /// File of the profile; by default the one that clients read: in $XDG_CACHE_HOME/farcall or ~/.cache/farcall, named
    /// after the device.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    stage: StageArgs,
    #[command(flatten)]
    halves: HalvesArgs,
}

impl Tune {
    /// Measures, prints, and writes the profile.
    ///
    /// # Errors
    /// If the measurement fails, or the profile cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.halves.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let chosen = self.nic.choose()?;
        let scope = scope_of(&chosen, self.halves.peer())?;
        let out = self.out.map_or_else(|| default_path(&scope), Ok)?;
        let stage = self.halves.stage(&self.stage, 0)?;
        measuring::run(console, |progress| {
            let (mut report, profile) = tune::run(&stage, &chosen, progress).map_err(|error| {
                cannot_measure("cannot measure what a connection can do", &*error, &stage)
            })?;
            if let Some(profile) = profile {
                write(&out, &scope, &profile)?;
                report.conditions.push("profile", out.display().to_string());
            }
            Ok(report)
        })
    }
}

/// Returns the path that clients use by default, after creating its directory.
fn default_path(scope: &Scope) -> Result<PathBuf, Failure> {
    const REMEDY: &str = "name a file: --out FILE";
    let place = scope.default_path().ok_or_else(|| {
        let why = "neither XDG_CACHE_HOME nor HOME is set";
        Failure::new("there is no directory for the profile").why(why).remedy(REMEDY)
    })?;
    let folder = place.parent().unwrap_or(&place);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        Failure::because("cannot make the directory of the profile", &error)
            .at(folder.display())
            .remedy(REMEDY)
    })?;
    Ok(place)
}

fn write(path: &Path, scope: &Scope, profile: &LinkProfile) -> Result<(), Failure> {
    let text = ProfileFile::new(scope, profile).to_json().map_err(io::Error::other);
    text.and_then(|text| whole_file::write(path, text.as_bytes())).map_err(|error| {
        Failure::because("cannot write the profile", &error)
            .at(path.display())
            .remedy("name a file in a directory that you may write: --out FILE")
    })
}
