//! One partition of the store: a hash index of eight-slot buckets over an arena of items, owned by one thread.
//!
//! Eviction follows these rules:
//! 1. A key whose bucket is full replaces an expired item of that bucket, or otherwise the bucket's least recently
//!    used item (strict LRU inside the bucket: RF-RPC, section 5.1).
//! 2. If the memory is full, a hand walks over the items in address order and removes items until there is a free
//!    block of the requested size. An item that was used since the hand last visited it is spared once. One allocation
//!    spares only a bounded number of items, so that contiguous room for a large value can be freed.
//! 3. Only with [`Config::evict`] disabled does a store refuse a write for lack of memory, and nothing has changed
//!    then.

mod arena;
mod bucket;
mod clock;
mod config;
mod error;
mod evict;
mod expire;
mod item;
mod listing;
mod meta;
mod partition;
mod prefixes;
mod read;
mod region;
mod stats;
mod wall;
mod write;

pub use clock::Clock;
#[cfg(feature = "server")]
pub(crate) use clock::unix_ms;
pub use config::{Config, ConfigError, IndexSize, VALUE_MAX_BYTES_CEILING, VALUE_MAX_BYTES_DEFAULT};
pub use error::{CounterError, StoreError};
pub use item::ITEM_OVERHEAD_BYTES;
pub use meta::{Invalidation, MetaGet, MetaItem};
pub use partition::Partition;
pub(crate) use prefixes::Prefixes;
pub use read::Item;
pub use stats::Stats;
#[cfg(feature = "server")]
pub(crate) use stats::StoreCounters;
pub use wall::WallClock;
pub use write::{Counter, Outcome, Put, PutMode};
pub(crate) use write::{format_decimal, parse_decimal};

/// Page size to which the layout is rounded, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
