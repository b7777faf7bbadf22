//! A store whose GETs are READs: the client looks into the server's memory, the server's CPU does nothing (Pilaf).
//!
//! The index is a 3-way cuckoo table in registered memory. An entry names an *extent*, where the key and its value
//! are. Clients READ both, one after the other, while the server may change them: a checksum in each entry covers the
//! entry, another the extent, and what does not match is read again. PUTs and DELETEs are calls: one thread of the
//! server is the only writer.
//!
//! It differs from the published system in three points. The checksums are 64 bits of rapidhash instead of CRC-64. A
//! key that is not found is looked for again if entries have moved meanwhile, so that no key is missed. A GET that is
//! disturbed too often is made as a call.
//!
//! ```
//! use farcall_kv::pilaf::{PilafClient, PilafConfig, serve};
//! use farcall_rpc::Server;
//! use farcall_softnic::SoftNic;
//!
//! let server = serve(Server::builder(), &SoftNic::new(), PilafConfig::default())?;
//! let address = server.address().to_string();
//! let mut store = PilafClient::connect(&SoftNic::new(), &address, PilafClient::options())?;
//! store.put(b"greeting", b"hello")?;
//! let mut value = Vec::new();
//! assert!(store.get(b"greeting", &mut value)?);
//! assert_eq!((&value[..], store.counters().gets_by_call), (&b"hello"[..], 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod entry;
mod extents;
mod index;
mod reader;
mod service;
mod store;

use thiserror::Error;

pub use client::{PilafClient, PilafError};
pub use reader::ReadCounters;
pub use service::serve;

/// Sizes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PilafConfig {
    /// Entries of the index. It is fast up to three quarters full, and refuses keys above nine tenths.
    pub entries: u32,
    /// Memory of keys and values, in bytes. Each pair takes the next power of two, at least 64 bytes.
    pub extents_bytes: usize,
    /// The largest value, in bytes.
    pub value_max_bytes: usize,
}

impl Default for PilafConfig {
    fn default() -> Self {
        Self { entries: 1 << 16, extents_bytes: 64 << 20, value_max_bytes: 64 << 10 }
    }
}

impl PilafConfig {
    /// Entries of the index.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Memory of keys and values, in bytes.
    #[must_use]
    pub fn extents_bytes(mut self, extents_bytes: usize) -> Self {
        self.extents_bytes = extents_bytes;
        self
    }

    /// The largest value, in bytes.
    #[must_use]
    pub fn value_max_bytes(mut self, value_max_bytes: usize) -> Self {
        self.value_max_bytes = value_max_bytes;
        self
    }
}

/// Why a pair was not stored. What the key had before is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum NotStored {
    #[error(
        "the index is full: {used} of {entries} entries are used and no move makes room; nothing was changed"
    )]
    IndexFull { used: u32, entries: u32 },
    #[error("no room for {len_bytes} bytes of key and value beside {used_bytes} used; nothing was changed")]
    ExtentsFull { len_bytes: usize, used_bytes: usize },
    #[error("a value of {len_bytes} bytes; this store takes {max_bytes} at most")]
    TooLarge { len_bytes: usize, max_bytes: usize },
}
