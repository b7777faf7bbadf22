//! `farcall rpc`: remote calls.

mod bench;
mod call;
mod serve;

use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::{Args, Subcommand, ValueEnum};
use farcall_link::{Plan, ResponsePath};
use farcall_rpc::{CallerConfig, ClientOptions};

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

impl Preset {
    /// How a client asks for it.
    fn client_options(self) -> ClientOptions {
        let plan = match self {
            Self::RfRpc => Plan::default(),
            Self::ServerReply => Plan { response: ResponsePath::Write, ..Plan::default() },
        };
        ClientOptions { config: CallerConfig { plan, ..CallerConfig::default() }, ..ClientOptions::default() }
    }
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
