//! `farcall memory`: nodes that provide memory to other processes.

mod ask;
mod drain;
mod forget;
pub(super) mod node_list;
mod region_bench;
mod scrub;
mod serve;
pub(super) mod size;
mod status;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Donate memory to other processes, and manage the nodes that do.
#[derive(Debug, Subcommand)]
pub enum Memory {
    Serve(serve::Serve),
    Status(status::Status),
    Drain(drain::Drain),
    Scrub(scrub::Scrub),
    Forget(forget::Forget),
    RegionBench(region_bench::RegionBench),
}

impl Memory {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Serve(serve) => serve.run(console),
            Self::Status(status) => status.run(console),
            Self::Drain(drain) => drain.run(console),
            Self::Scrub(scrub) => scrub.run(console),
            Self::Forget(forget) => forget.run(console),
            Self::RegionBench(bench) => bench.run(console),
        }
    }
}
