//! `farcall grpc`: gRPC over its transports.

mod bench;
mod kv;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Measure gRPC over streams, with HTTP/2 and without; serve a key-value store over it.
#[derive(Debug, Subcommand)]
pub enum Grpc {
    Bench(bench::Bench),
    Kv(kv::Kv),
}

impl Grpc {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Bench(bench) => bench.run(console),
            Self::Kv(kv) => kv.run(console),
        }
    }
}
