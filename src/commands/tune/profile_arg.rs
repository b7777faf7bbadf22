//! The option for a profile.

use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::rpc::tune::{LinkProfile, Peer, ProfileError, ProfileFile, Scope};
use farcall::select::SelectedNic;
use std::path::PathBuf;

/// Profile of a connection.
#[derive(Debug, Clone, Args)]
pub struct ProfileArg {
    /// Profile that farcall tune wrote. Connections use it instead of a probe.
    #[arg(long, value_name = "FILE", help_heading = "Provider")]
    profile: Option<PathBuf>,
}

impl ProfileArg {
    /// Returns the profile of the file, if one was named, for connections to servers of that peer.
    ///
    /// # Errors
    /// If it cannot be read, is not a profile, or is one of another device, peer or version.
    pub fn read(&self, selected: &SelectedNic, peer: Peer) -> Result<Option<LinkProfile>, Failure> {
        let Some(path) = &self.profile else { return Ok(None) };
        let refused = |error: ProfileError| {
            Failure::because("the profile cannot be used", &error)
                .at(path.display())
                .remedy("write a profile of this device and peer: farcall tune")
                .exit(Exit::Usage)
        };
        let scope = Scope::of(&selected.nic, peer);
        ProfileFile::read(path).and_then(|file| file.check(&scope)).map(Some).map_err(refused)
    }
}
