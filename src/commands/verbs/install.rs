//! `farcall verbs install DIR`.

use super::library::{self, Library};
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Copy the libraries to a directory, with the names that programs link.
///
/// The files are libibverbs.so.1 and librdmacm.so.1. Programs use them with LD_LIBRARY_PATH=DIR, or if DIR is in the
/// loader configuration of a container. With LD_PRELOAD=DIR/libibverbs.so.1, they also find the device in /sys and /dev.
/// `farcall verbs run` searches for them in ../lib/farcall, relative to the directory of farcall.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall verbs install ./lib && LD_LIBRARY_PATH=./lib ibv_devinfo")]
pub struct Install {
    /// The directory. Created if it does not exist.
    dir: PathBuf,
}

impl Install {
    /// Copies the libraries.
    ///
    /// # Errors
    /// If a library is missing, or the directory cannot be written to.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let libraries = library::find()?;
        fs::create_dir_all(&self.dir)
            .and_then(|()| libraries.iter().try_for_each(|library| copy(library, &self.dir)))
            .map_err(|error| {
                Failure::because("cannot install the libraries", &error).at(self.dir.display())
            })?;
        let installed: Vec<PathBuf> =
            libraries.iter().map(|library| self.dir.join(library.system_name)).collect();
        let lines: String = installed.iter().map(|file| format!("installed {}\n", file.display())).collect();
        let text = format!("{lines}use them: LD_LIBRARY_PATH={} PROGRAM", self.dir.display());
        let from: Vec<&PathBuf> = libraries.iter().map(|library| &library.file).collect();
        console.print(&text, &json!({ "installed": installed, "from": from }))?;
        Ok(Exit::Success)
    }
}

/// Copies to a temporary name and renames it, so that a running program keeps the file that it has mapped.
fn copy(library: &Library, dir: &Path) -> io::Result<()> {
    let temporary = dir.join(format!(".{}.{}", library.system_name, std::process::id()));
    let copied = fs::copy(&library.file, &temporary)
        .and_then(|_| fs::rename(&temporary, dir.join(library.system_name)));
    if copied.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    copied
}
