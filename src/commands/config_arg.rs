//! `--config` for commands that serve. `crate::config` reads the option before the command is parsed.

use clap::Args;
use std::path::PathBuf;

/// Where more options are.
#[derive(Debug, Args)]
pub struct ConfigArg {
    /// Take options from this file, too: TOML, each key the long name of an option, such as memory-mib = 1024. What the
    /// command line says wins. SIGHUP has the file read again: its log filter takes effect at once.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}
