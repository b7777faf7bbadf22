//! `farcall stream`: byte streams.

mod bench;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Measure byte streams over RDMA verbs.
#[derive(Debug, Subcommand)]
pub enum Stream {
    Bench(bench::Bench),
}

impl Stream {
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
