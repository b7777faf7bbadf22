//! `farcall remio`: one-sided I/O to the memory of other processes.

mod bench;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Measure one-sided I/O to the memory of another process (RDMAbox).
#[derive(Debug, Subcommand)]
pub enum Remio {
    Bench(bench::Bench),
}

impl Remio {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Bench(bench) => bench.run(console),
        }
    }
}
