//! `--config` for commands that serve. `crate::config` reads the option before the command is parsed.

use clap::Args;
use std::path::PathBuf;

/// File with further options.
#[derive(Debug, Args)]
pub struct ConfigArg {
    /// TOML file with further options. Each key is the long name of an option, such as memory-mib = 1024. The command line
    /// has precedence. SIGHUP reads the file again; a new log filter takes effect at once.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}
