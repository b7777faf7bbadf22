//! An ordered, durable key-value service over gRPC, as RR-Compound's evaluation has one (section V-E): Get, Put, Delete,
//! batches, scans, iterators by server streaming, snapshots.
//!
//! * [`v1`]: the messages, tonic's clients and server traits, and direct clients (`ordered_kv_direct`) whose unary calls
//!   do without tonic's codec.
//! * `OrderedStore` (feature `server`): records in an LSM tree (`fjall`), below one directory.
//! * `KvService`, `LsmServer` (feature `server`): the service, and a thread that serves it.
//!
//! There is no authentication and no TLS: who can connect reads and writes everything. Listen where you trust the network.
//!
//! # What an answer to a write means
//!
//! Its record is there for every later read, in the order of the answers. What else it survives is `Durability`: the end
//! of the process at any moment, `kill -9` included, or the end of the machine, too. A write whose call fails may have
//! happened or not, as long as the server was reached; the same write may be sent again.

#![forbid(unsafe_code)]

#[cfg(feature = "server")]
mod commits;
#[cfg(feature = "server")]
mod limits;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod service;
#[cfg(feature = "server")]
mod snapshots;
#[cfg(feature = "server")]
mod store;

#[cfg(feature = "server")]
pub use commits::{Change, Durability};
#[cfg(feature = "server")]
pub use limits::StoreLimits;
#[cfg(feature = "server")]
pub use server::{LsmServer, LsmServerError, ServerOptions, Transport};
#[cfg(feature = "server")]
pub use service::KvService;
#[cfg(feature = "server")]
pub use store::{OrderedStore, Page, StoreError, StoreOptions};

/// What tonic, prost and `farcall-grpc-build` generate.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("farcall.kv.v1");
}
