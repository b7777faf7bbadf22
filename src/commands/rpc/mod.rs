//! `farcall rpc`: remote calls.

#[cfg(feature = "full")]
mod bench;
mod call;
mod serve;

#[cfg(not(feature = "full"))]
use super::not_built_in::{NOT_BUILT_IN, NotBuiltIn};
use crate::console::Console;
use crate::failure::{Exit, Failure};
pub use call::is_silence;
use clap::Subcommand;

/// Serve, make and measure remote calls over RDMA verbs.
#[derive(Debug, Subcommand)]
pub enum Rpc {
    Serve(serve::Serve),
    Call(call::Call),
    #[cfg(feature = "full")]
    Bench(bench::Bench),
    #[cfg(not(feature = "full"))]
    #[command(about = NOT_BUILT_IN)]
    Bench(NotBuiltIn),
}

impl Rpc {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Returns the failure of the subcommand.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        match self {
            Self::Serve(serve) => serve.run(console),
            Self::Call(call) => call.run(console),
            Self::Bench(bench) => bench.run(console),
        }
    }
}
