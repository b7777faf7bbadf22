//! `farcall tune`: measures the properties of a connection and stores them for clients.

mod profile_arg;

use crate::commands::bench_args::{self, RepetitionArgs};
use crate::commands::nic_args::NicArgs;
use crate::commands::remote_args::{RemoteArgs, cannot_measure};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::whole_file;
use clap::Args;
use farcall::rpc::tune::{LinkProfile, ProfileFile, Scope};
use farcall_bench::experiments::tune;
pub use profile_arg::ProfileArg;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Measure a connection, and write a profile with which clients choose presets.
///
/// Starts its own echo service on one core and the client on another. Prints the costs of READs by size and of replies,
/// the parameters R, F and N of the RF-RPC paper that follow from them, and the best settings for posting and waiting.
/// Clients that choose their preset read the profile from its default path; bench kv and bench rpc also from another
/// file (--profile FILE). The profile is valid for this device, this version of farcall, and servers of this host, or
/// of the host of --connect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall tune\n  farcall tune --provider ibv --out rnic.json\n  \
                        farcall bench rpc --provider ibv --profile rnic.json\n  \
                        farcall tune --provider ibv --listen 0.0.0.0:11400       on another host, then here:\n  \
                        farcall tune --provider ibv --connect server:11400")]
pub struct Tune {
    /// File of the profile [default: the one that clients read, in $XDG_CACHE_HOME/farcall or ~/.cache/farcall, named
    /// after the device].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    repeat: RepetitionArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl Tune {
    /// Measures, prints, and writes the profile.
    ///
    /// # Errors
    /// If the measurement fails, or the profile cannot be written.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        if let Some(exit) = self.remote.serve(console, &self.nic)? {
            return Ok(exit);
        }
        let selected = self.nic.open()?;
        let scope = Scope::of(&selected.nic, self.remote.peer());
        let out = self.out.map_or_else(|| default_path(&scope), Ok)?;
        let env = self.remote.env(&self.repeat, 0)?;
        bench_args::run(console, |progress| {
            let (mut report, profile) = tune::run(&env, &selected, progress)
                .map_err(|error| cannot_measure("cannot measure the connection", &*error, &env))?;
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
    let path = scope.default_path().ok_or_else(|| {
        let why = "neither XDG_CACHE_HOME nor HOME is set";
        Failure::new("there is no directory for the profile").why(why).remedy(REMEDY)
    })?;
    let directory = path.parent().unwrap_or(&path);
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
        Failure::because("cannot create the directory of the profile", &error)
            .at(directory.display())
            .remedy(REMEDY)
    })?;
    Ok(path)
}

fn write(path: &Path, scope: &Scope, profile: &LinkProfile) -> Result<(), Failure> {
    let text = ProfileFile::new(scope, profile).to_json().map_err(io::Error::other);
    text.and_then(|text| whole_file::write(path, text.as_bytes())).map_err(|error| {
        Failure::because("cannot write the profile", &error)
            .at(path.display())
            .remedy("name a file in a directory to which you may write: --out FILE")
    })
}
