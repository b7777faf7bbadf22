//! The option that names a profile.

use super::profile_file::{ProfileFile, device_of};
use crate::failure::Failure;
use clap::Args;
use farcall::rpc::tune::LinkProfile;
use farcall::select::Chosen;
use std::path::PathBuf;

/// Which profile to take.
#[derive(Debug, Clone, Args)]
pub struct ProfileArg {
    /// What farcall tune wrote: connections begin with it instead of a probe.
    #[arg(long, value_name = "FILE", help_heading = "Provider")]
    profile: Option<PathBuf>,
}

impl ProfileArg {
    /// What the file says, if one was named.
    ///
    /// # Errors
    /// When it cannot be read, is no profile, or one of another device or version.
    pub fn read(&self, chosen: &Chosen) -> Result<Option<LinkProfile>, Failure> {
        let Some(path) = &self.profile else { return Ok(None) };
        ProfileFile::read(path)?.check(&device_of(chosen)?, path).map(Some)
    }
}
