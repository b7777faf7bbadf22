//! `farcall grpc`: gRPC over its transports.

mod kv;

use crate::commands::bench::GrpcBench;
use crate::commands::command_group::command_group;

command_group! {
    /// Serve a key-value store over gRPC.
    pub enum Grpc {
        always {
            Kv(kv::Kv),
            #[command(hide = true)]
            Bench(GrpcBench),
        }
    }
}
