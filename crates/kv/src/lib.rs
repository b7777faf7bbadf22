//! Jakiro: an in-memory key-value store cut into partitions that nobody shares (RF-RPC, section 5.1).
//!
//! Every server thread owns one [`Partition`] exclusively (EREW: exclusive read, exclusive write), so the
//! store contains no lock and no atomic. A key's hash names its owner; see [`Router`].
//!
//! The store and its protocols hold no clock, socket or thread: time is a `now_ms` argument in milliseconds since the Unix
//! epoch, and both protocols are bytes in, bytes out. Sockets are [`door`]'s, connections [`client`]'s.
//!
//! - [`store`]: the partition: index, memory, eviction, expiry.
//! - [`wire`]: the binary requests and replies carried by Farcall RPC, and the [`wire::Service`] that answers them.
//! - [`memcached`]: memcached's text and meta protocols as a session, and a small blocking client.
//! - [`client`]: a blocking client of all partitions over RPC.
//! - [`door`]: the memcached protocols over TCP and Unix stream sockets.

pub mod client;
pub mod door;
mod key;
pub mod memcached;
pub mod store;
pub mod wire;

pub use key::{HashSeed, KEY_MAX_BYTES, Key, KeyError, Router};
pub use store::{Config, Item, Partition, Stats, StoreError};
