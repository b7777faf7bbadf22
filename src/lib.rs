//! The commands of the `farcall` binary: parse, call, print.

mod commands;
mod console;
mod echo;
mod failure;
mod open_files;
mod signals;
mod whole_file;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

/// Does what the command line says.
pub fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    let console = cli.console();
    show_warnings();
    match cli.run() {
        Ok(exit) => exit.into(),
        Err(failure) => {
            console.fail(&failure);
            failure.exit.into()
        }
    }
}

/// Lets the libraries' warnings go to standard error, a line each.
fn show_warnings() {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
}
