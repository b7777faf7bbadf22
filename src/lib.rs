//! RDMA remote calls and services that run everywhere.

pub mod kv_server;

pub use farcall_kv as kv;
pub use farcall_softnic as softnic;
pub use farcall_verbs as verbs;
