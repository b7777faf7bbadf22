//! The commands of the `farcall` binary: parse, call, print.

mod commands;
mod console;
mod echo;
mod failure;
mod log;
mod open_files;
mod signals;
mod whole_file;

use std::process::ExitCode;

use clap::Parser;

/// Does what the command line says.
pub fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    let console = cli.console();
    log::start(cli.log_filter());
    match cli.run() {
        Ok(exit) => exit.into(),
        Err(failure) => {
            console.fail(&failure);
            failure.exit.into()
        }
    }
}
