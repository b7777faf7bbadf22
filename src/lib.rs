//! The commands of the `farcall` binary: parse, call, print.

mod bounded_file;
mod commands;
mod config;
mod console;
mod echo;
mod failure;
mod log;
mod open_files;
mod signals;
mod systemd;
mod whole_file;

use std::env;
use std::process::ExitCode;

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = match config::parse(env::args_os().collect()) {
        Ok(cli) => cli,
        Err(failure) => {
            eprintln!("{failure}");
            return failure.exit.into();
        }
    };
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
