//! The experiments, one file each. All repetitions are interleaved, so that a slow second of the machine affects all
//! compared systems equally.

#[cfg(feature = "verbs")]
pub mod advise;
#[cfg(feature = "verbs")]
pub mod byte_streams;
#[cfg(feature = "verbs")]
pub(crate) mod calls;
pub(crate) mod clients;
mod env;
pub(crate) mod foreign_server;
#[cfg(feature = "verbs")]
pub mod grpc_calls;
#[cfg(feature = "verbs")]
pub mod grpc_ycsb;
#[cfg(feature = "verbs")]
pub mod herd;
pub mod kv_main;
#[cfg(feature = "verbs")]
pub mod limits;
pub mod own_syscalls;
#[cfg(feature = "verbs")]
pub mod perf;
#[cfg(feature = "verbs")]
mod posting;
#[cfg(feature = "verbs")]
pub(crate) mod preset_ranking;
#[cfg(feature = "verbs")]
pub mod qps;
mod reach;
pub mod ready;
#[cfg(feature = "verbs")]
pub mod region_faults;
#[cfg(feature = "verbs")]
pub mod remio_bench;
#[cfg(feature = "verbs")]
pub mod rpc_echo;
pub mod server;
pub mod service;
#[cfg(feature = "verbs")]
pub mod stream_waits;
#[cfg(feature = "verbs")]
pub(crate) mod subject;
pub mod tune;

#[cfg(feature = "verbs")]
pub use calls::Job;
pub use env::{ExperimentEnv, Progress};
pub use reach::Reach;

/// Reason why an experiment could not run; faults of its results are problems of the report instead.
pub type ExperimentError = Box<dyn std::error::Error + Send + Sync>;
