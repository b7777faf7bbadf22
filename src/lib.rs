//! RDMA remote calls and services that run everywhere: on an RNIC through verbs, and without one through a software RNIC.
//!
//! This crate gathers the floors of the project for programs, and the `farcall` binary for people. What you may want:
//!
//! - *remote calls*: [`rpc`] (servers, clients, and what a service implements); [`echo`] is a service to try;
//! - *a key-value service*: [`kv_server`] serves the store of [`kv`] over RPC and to any memcached client;
//! - *verbs*: [`verbs`] is the vocabulary; behind it are [`softnic`], the software RNIC, and [`ibv`], the system's
//!   libibverbs; [`providers`] chooses;
//! - *counters of a running process*: [`stats`].
//!
//! ```no_run
//! use farcall::kv_server::{KvServer, KvServerConfig};
//!
//! let config = KvServerConfig {
//!     tcp: vec!["127.0.0.1:0".parse()?],
//!     rpc: Some("127.0.0.1:0".parse()?),
//!     ..KvServerConfig::default()
//! };
//! let server = KvServer::start(config)?;
//! println!("memcached clients: {:?}, RPC clients: {:?}", server.tcp_addresses(), server.rpc_address());
//! server.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Between processes of one host the software RNIC is inter-process communication, not a network. Its keys catch bugs, not
//! a malicious process of the same user.

pub mod echo;
pub mod kv_server;

pub use farcall_drive as drive;
pub use farcall_ibv as ibv;
pub use farcall_kv as kv;
pub use farcall_link as link;
pub use farcall_providers as providers;
pub use farcall_rpc as rpc;
pub use farcall_softnic as softnic;
pub use farcall_stats as stats;
pub use farcall_verbs as verbs;

/// The examples of README.md, kept working.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
