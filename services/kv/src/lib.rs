//! Jakiro: an in-memory key-value store divided into partitions that are not shared between threads (RF-RPC, section
//! 5.1).
//!
//! Every server thread owns one [`Partition`] exclusively (EREW: exclusive read, exclusive write), so the store
//! contains no lock and no atomic. The hash of a key determines its owner; see [`Router`].
//!
//! The store and its protocols contain no clock, socket or thread. Time is a `now_ms` argument, in milliseconds of a
//! monotonic clock, and both protocols map bytes to bytes. Sockets belong to [`front_end`], connections to [`client`].
//!
//! - [`store`]: the partition: index, memory, eviction, expiration.
//! - [`wire`]: the binary requests and replies carried by Farcall RPC, and the [`wire::Service`] that executes them.
//! - [`memcached`]: memcached's text and meta protocols as a session, and a small blocking client.
//! - [`client`]: a blocking client of all partitions over RPC.
//! - [`bypass`] (feature `server`): other stores for comparison, whose GETs are READs; [`pilaf`] and [`farm`].
//! - [`server`] (feature `server`): the threads of a complete store, and the sockets of its memcached clients
//!   ([`front_end`]).

#[cfg(feature = "server")]
pub mod bypass;
pub mod client;
#[cfg(feature = "server")]
pub mod farm;
#[cfg(feature = "server")]
pub mod front_end;
mod key;
pub mod memcached;
#[cfg(feature = "server")]
pub mod pilaf;
#[cfg(feature = "server")]
pub mod server;
pub mod store;
pub mod wire;

pub use key::{HashSeed, KEY_MAX_BYTES, Key, KeyError, Router};
pub use store::{Config, Item, Partition, Stats, StoreError};
