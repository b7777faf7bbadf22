//! Jakiro: an in-memory key-value store cut into partitions that nobody shares (RF-RPC, section 5.1).
//!
//! Every server thread owns one [`Partition`] exclusively (EREW: exclusive read, exclusive write), so the
//! store contains no lock and no atomic. A key's hash names its owner; see [`Router`].
//!
//! The store and its protocols hold no clock, socket or thread: time is a `now_ms` argument, in milliseconds of a clock
//! that nobody sets, and both protocols are bytes in, bytes out. Sockets are [`front_end`]'s, connections [`client`]'s.
//!
//! - [`store`]: the partition: index, memory, eviction, expiry.
//! - [`wire`]: the binary requests and replies carried by Farcall RPC, and the [`wire::Service`] that answers them.
//! - [`memcached`]: memcached's text and meta protocols as a session, and a small blocking client.
//! - [`client`]: a blocking client of all partitions over RPC.
//! - [`bypass`] (feature `server`): other stores, to compare with: their GETs are READs; [`pilaf`] and [`farm`].
//! - [`server`] (feature `server`): the threads of a whole store, and the sockets of its memcached clients
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
