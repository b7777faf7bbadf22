//! The experiments, one file each. All repetitions are interleaved: a slow second of the machine hits every rival alike.

pub mod herd;
pub mod kv_main;
pub mod limits;
pub mod own_syscalls;
pub mod perf;
pub mod qps;
pub mod rpc_echo;
pub mod server;
mod stage;

pub use stage::{Progress, Stage};
