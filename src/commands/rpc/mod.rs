//! `farcall rpc`: remote calls.

mod call;
mod serve;

#[cfg(feature = "full")]
use crate::commands::bench::RpcBench;
use crate::commands::command_group::command_group;
pub use call::is_silence;

command_group! {
    /// Serve and make remote calls over RDMA verbs.
    pub enum Rpc {
        always {
            Serve(serve::Serve),
            Call(call::Call),
        }
        full {
            #[command(hide = true)]
            Bench(RpcBench),
        }
    }
}
