//! `farcall kv`: the key-value service and its clients.

mod address;
mod bench;
mod client;
mod del;
mod get;
mod load;
mod records;
mod serve;
mod set;
mod stats;

pub use address::resolve;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Subcommand;

/// Serve, fill, query and measure the key-value store.
#[derive(Debug, Subcommand)]
pub enum Kv {
    Serve(serve::Serve),
    Load(load::Load),
    Get(get::Get),
    Set(set::Set),
    Del(del::Del),
    Stats(stats::Stats),
    Bench(bench::Bench),
}

impl Kv {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Serve(serve) => serve.run(console),
            Self::Load(load) => load.run(console),
            Self::Get(get) => get.run(console),
            Self::Set(set) => set.run(console),
            Self::Del(del) => del.run(console),
            Self::Stats(stats) => stats.run(console),
            Self::Bench(bench) => bench.run(console),
        }
    }
}
