//! `farcall __peer`: the other end of a measurement.

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;

/// Run the other end of a measurement. Started by farcall itself.
#[derive(Debug, Args)]
pub struct Peer {}

impl Peer {
    /// Runs until the process that measures ends the connection.
    ///
    /// # Errors
    /// If the measurement fails.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        farcall_bench::run_peer()
            .map(|()| Exit::Success)
            .map_err(|error| Failure::because("the other end of a measurement failed", &error))
    }
}
