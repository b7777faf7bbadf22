//! The `farcall` binary: parse, call, print.

mod commands;
mod console;
mod failure;
mod signals;

use clap::Parser;
use farcall_bench::measure::CountingAllocator;
use std::process::ExitCode;

/// Counts heap operations, so that benchmarks can show that calls need none.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    let console = cli.console();
    match cli.run() {
        Ok(exit) => exit.into(),
        Err(failure) => {
            console.fail(&failure);
            failure.exit.into()
        }
    }
}
