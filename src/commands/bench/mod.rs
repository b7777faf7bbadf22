//! `farcall bench`: measurements of single parts of Farcall, compared with other systems.

mod kv;
pub use kv::KvBench;

#[cfg(feature = "full")]
mod grpc;
#[cfg(feature = "full")]
mod page;
#[cfg(feature = "full")]
mod region;
#[cfg(feature = "full")]
mod remio;
#[cfg(feature = "full")]
mod rpc;
#[cfg(feature = "full")]
mod stream;
#[cfg(feature = "full")]
mod verbs;

use crate::commands::command_group::command_group;
#[cfg(feature = "full")]
pub use {
    grpc::GrpcBench, page::PageBench, region::RegionBench, remio::RemioBench, rpc::RpcBench,
    stream::StreamBench, verbs::VerbsBench,
};

command_group! {
    /// Measure a part of Farcall on this machine, compared with other systems.
    pub enum Bench {
        always {
            Kv(KvBench),
        }
        full {
            Rpc(RpcBench),
            Stream(StreamBench),
            Grpc(GrpcBench),
            Verbs(VerbsBench),
            Remio(RemioBench),
            Page(PageBench),
            Region(RegionBench),
        }
    }
}

#[cfg(feature = "full")]
command_group! {
    /// Former place of farcall bench stream.
    pub enum FormerStream {
        always {
            Bench(StreamBench),
        }
    }
}

#[cfg(feature = "full")]
command_group! {
    /// Former place of farcall bench remio.
    pub enum FormerRemio {
        always {
            Bench(RemioBench),
        }
    }
}
