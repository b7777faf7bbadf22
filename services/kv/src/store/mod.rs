//! One partition of the store: a hash index of eight-slot buckets over an arena of items, owned by one thread.
//!
//! What gives way when there is no room, exactly:
//! 1. A key whose bucket is full takes the slot of an expired item of that bucket, or else of the bucket's least
//!    recently used item (strict LRU inside the bucket: RF-RPC, section 5.1).
//! 2. When the memory is full, a hand walks over the items in address order. It removes every item it meets
//!    until a hole of the wanted size has opened; an item used since the hand last passed gets one more round,
//!    but for one allocation only a bounded number of items is spared, so that room for a large value opens in
//!    one stretch.
//! 3. Only with [`Config::evict`] off does a store refuse for lack of memory, and then nothing has changed.

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

/// The page size the layout is rounded to, in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
