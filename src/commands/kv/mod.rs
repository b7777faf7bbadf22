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
use clap::{Args, Subcommand};

/// Serve, fill, query and measure the key-value store.
#[derive(Debug, Args)]
pub struct Kv {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Load(load::Load),
    Get(get::Get),
    Set(set::Set),
    Del(del::Del),
    Stats(stats::Stats),
    Bench(bench::Bench),
}

impl Kv {
    /// Does what was asked.
    ///
    /// # Errors
    /// When it could not be done.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self.command {
            Command::Serve(serve) => serve.run(console),
            Command::Load(load) => load.run(console),
            Command::Get(get) => get.run(console),
            Command::Set(set) => set.run(console),
            Command::Del(del) => del.run(console),
            Command::Stats(stats) => stats.run(console),
            Command::Bench(bench) => bench.run(console),
        }
    }
}
