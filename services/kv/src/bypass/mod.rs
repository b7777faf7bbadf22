//! Stores whose GETs are READs of the server's memory without work for the server's CPU (server-bypass). PUTs and
//! DELETEs are calls; one thread of the server is the only writer.
//!
//! There is one store implementation. A [`Scheme`] determines where its index may hold a key: [`crate::pilaf`] and
//! [`crate::farm`] are two schemes. An *entry* of the index names an *extent* that holds the key and its value, or is
//! followed by both if they are short ([`BypassConfig::inline_bytes`]). Clients READ while the server writes. A
//! checksum in each entry covers the entry, another the key and its value; on a mismatch the client reads again. If a
//! key is not found and entries have moved in the meantime, the lookup is repeated, so that no key is missed. A GET
//! that is disturbed too often is made as a call.
//!
//! - [`Service`]: the server side, a handler of calls; it writes `index`, `extents` and `store`.
//! - [`KeyLookup`]: a key lookup as a state machine, bytes in and next READ out; `entry` validates the bytes.
//! - [`Operations`]: the requests of a client in progress, with concurrent READs, without thread, clock or socket.
//! - [`BypassClient`]: the blocking client.

mod client;
mod entry;
mod extents;
mod fuzz;
mod index;
mod lookup;
mod operations;
mod reads;
mod service;
mod store;

use std::marker::PhantomData;

use thiserror::Error;

pub use client::BypassClient;
#[doc(hidden)]
pub use fuzz::fuzz_lookup;
pub use lookup::{KeyLookup, LookupStep, ReadTarget, Table};
pub use operations::{Answer, Calls, CompletedRequest, OperationId, Operations};
pub use service::{Service, serve};

/// Determines where an index may hold a key: in some groups of adjacent entries, each fetched by one READ.
pub trait Scheme: sealed::Sealed + Send + 'static {
    /// Name of the scheme.
    const NAME: &'static str;
    /// Number of groups that may hold a key.
    const GROUPS: u32;
    /// Number of entries of a group.
    const SPAN: u32;
    /// `true` if keys whose group is full are stored in blocks chained to the group.
    const CHAINS: bool;
    /// Preset of its calls.
    const CALLS: &'static str;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// Sizes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BypassConfig {
    /// Number of entries of the index.
    pub entries: u32,
    /// Length of the memory for keys and values outside the index, in bytes. Each pair uses a power of two, at least
    /// 64 bytes.
    pub extents_bytes: usize,
    /// Maximum length of a value in bytes.
    pub value_max_bytes: usize,
    /// Maximum length of a key and its value, including one byte for the length of the key, that are stored in the
    /// index itself. A GET of such a key needs no READ of an extent. Every entry uses this much more memory, and every
    /// READ of entries transfers it.
    pub inline_bytes: u32,
}

impl Default for BypassConfig {
    fn default() -> Self {
        Self { entries: 1 << 16, extents_bytes: 64 << 20, value_max_bytes: 64 << 10, inline_bytes: 0 }
    }
}

impl BypassConfig {
    /// Sets the number of entries of the index.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Sets the length of the memory for keys and values outside the index, in bytes.
    #[must_use]
    pub fn extents_bytes(mut self, extents_bytes: usize) -> Self {
        self.extents_bytes = extents_bytes;
        self
    }

    /// Sets the maximum length of a value in bytes.
    #[must_use]
    pub fn value_max_bytes(mut self, value_max_bytes: usize) -> Self {
        self.value_max_bytes = value_max_bytes;
        self
    }

    /// Sets the maximum length of a key and its value in the index, in bytes.
    #[must_use]
    pub fn inline_bytes(mut self, inline_bytes: u32) -> Self {
        self.inline_bytes = inline_bytes;
        self
    }

    /// Returns the memory that the index uses, in bytes.
    #[must_use]
    pub fn index_bytes<S: Scheme>(&self) -> usize {
        entry::Layout::of::<S>(self.entries, self.inline_bytes).index_bytes::<S>()
    }
}

/// Counters of GETs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounters {
    /// Number of GETs.
    pub gets: u64,
    /// Number of READs posted for them.
    pub reads: u64,
    /// Number of lookups repeated because an entry or a value changed during a READ.
    pub torn: u64,
    /// Number of lookups repeated because the key was not found while entries moved.
    pub moved: u64,
    /// Number of GETs made as calls, after too many lookups.
    pub gets_by_call: u64,
}

/// A request to a store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BypassError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] farcall_rpc::ConnectError),
    /// The key is invalid; nothing was sent.
    #[error(transparent)]
    Key(#[from] crate::key::KeyError),
    /// The call failed, or the store refused it, for example because it is full.
    #[error(transparent)]
    Call(#[from] farcall_rpc::CallError),
    /// A queue pair for READs cannot be created.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The server is not such a store.
    #[error(
        "the server does not answer as a {store} store: {why}; see that client and server are of one kind and version"
    )]
    NoStore {
        /// The expected kind of store.
        store: &'static str,
        /// The difference.
        why: &'static str,
    },
    /// READs fail, including those over a new connection.
    #[error("cannot read the store: {0}; see that the server still runs, and connect again")]
    Unreadable(String),
    /// All requests of the client's window are in progress.
    #[error("all {window} requests of the window are in flight; take completions first")]
    WindowFull {
        /// Size of the window.
        window: usize,
    },
}

/// Reasons for which a pair was not stored. The previous value of the key is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum PutError {
    #[error(
        "the index is full: {used} of {entries} entries are used and no move makes room; nothing was changed"
    )]
    IndexFull { used: u32, entries: u32 },
    #[error(
        "no room for {len_bytes} bytes of key and value in addition to {used_bytes} used; nothing was changed"
    )]
    ExtentsFull { len_bytes: usize, used_bytes: usize },
    #[error("a value of {len_bytes} bytes; this store takes {max_bytes} at most")]
    TooLarge { len_bytes: usize, max_bytes: usize },
}

/// A zero-sized marker for a scheme.
type Of<S> = PhantomData<fn() -> S>;
