//! A simulated RDMA network: hosts, RNICs and links in virtual time. The same seed results in the same run, byte for
//! byte.

pub use farcall_sim::{
    Config, Faults, Host, HostClock, Limits, Listener, NodeId, Params, Pipe, Purpose, Record, RecordKind,
    Stream, TaskId, WaitStrategy, World,
};
