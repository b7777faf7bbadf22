//! `farcall man DIR`.

use super::Cli;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, CommandFactory};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// Write the manual pages of this program and its commands.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall man ~/.local/share/man/man1 && man farcall-kv-serve")]
pub struct Man {
    /// The directory. Created if it does not exist.
    dir: PathBuf,
}

impl Man {
    /// Writes a page for each command.
    ///
    /// # Errors
    /// If the directory cannot be written to.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &self.dir))
            .map_err(|error| {
                Failure::because("cannot write the manual pages", &error).at(self.dir.display())
            })?;
        console.print(
            &format!("wrote the manual pages to {}", self.dir.display()),
            &json!({ "dir": self.dir }),
        )?;
        Ok(Exit::Success)
    }
}
