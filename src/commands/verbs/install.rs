//! `farcall verbs install DIR`.

use super::library;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// Copy the library into a folder, under the name that programs link.
///
/// Programs use it with LD_LIBRARY_PATH=DIR, or when DIR is in the loader's configuration of a container.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall verbs install ./lib && LD_LIBRARY_PATH=./lib ibv_devinfo")]
pub struct Install {
    /// The folder; made if it is not there.
    dir: PathBuf,
}

impl Install {
    /// Copies.
    ///
    /// # Errors
    /// When the library is not there, or the folder cannot be written to.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let from = library::find()?;
        let to = self.dir.join(library::SYSTEM_NAME);
        // Beside its place first: a program that runs keeps the file it has mapped.
        let beside = self.dir.join(format!(".{}.{}", library::SYSTEM_NAME, std::process::id()));
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::copy(&from, &beside))
            .and_then(|_| fs::rename(&beside, &to))
            .map_err(|error| {
                let _ = fs::remove_file(&beside);
                Failure::because("cannot install the library", &error).at(self.dir.display())
            })?;
        let text =
            format!("installed {}\nuse it: LD_LIBRARY_PATH={} PROGRAM", to.display(), self.dir.display());
        console.say(&text, &json!({ "installed": to, "from": from }))?;
        Ok(Exit::Success)
    }
}
