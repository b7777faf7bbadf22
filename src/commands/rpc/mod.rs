//! `farcall rpc`: remote calls.

mod bench;
mod call;
mod serve;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand, ValueEnum};

/// Serve, make and measure remote calls over RDMA verbs.
#[derive(Debug, Args)]
pub struct Rpc {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Call(call::Call),
    Bench(bench::Bench),
}

/// How results come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// The client fetches results by READ; methods that take long turn to server-reply.
    RfRpc,
    /// The server writes every result.
    ServerReply,
}

impl Rpc {
    /// Does what was asked.
    ///
    /// # Errors
    /// When it could not be done.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self.command {
            Command::Serve(serve) => serve.run(console),
            Command::Call(call) => call.run(console),
            Command::Bench(bench) => bench.run(console),
        }
    }
}
