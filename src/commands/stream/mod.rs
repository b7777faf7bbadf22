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
    /// Does what was asked.
    ///
    /// # Errors
    /// When it could not be done.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Bench(bench) => bench.run(console),
        }
    }
}
