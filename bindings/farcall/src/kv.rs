//! The key-value store: partitions that threads do not share, served to RPC clients and to any memcached client.
//!
//! - [`KvClient`]: a blocking client of the complete store over RPC.
//! - [`MemcachedClient`]: a small blocking client of memcached's text protocol.
//! - `KvServer` (feature `kv-server`): the store as a service in this process.

pub use farcall_kv::client::{Change, KvClient, KvConnectError, KvError, Write};
pub use farcall_kv::memcached::client::{Client as MemcachedClient, ClientError as MemcachedError, Value};
#[cfg(feature = "kv-server")]
pub use farcall_kv::server::{KvServer, KvServerBuilder, KvServerError};
pub use farcall_kv::store::{Counter, PutMode, Stats, VALUE_MAX_BYTES_DEFAULT};
pub use farcall_kv::wire::MultiItem;
pub use farcall_kv::{KEY_MAX_BYTES, KeyError};
