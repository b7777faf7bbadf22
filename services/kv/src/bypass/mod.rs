//! Stores whose GETs are READs: the client looks into the server's memory, the server's CPU does nothing
//! (server-bypass). PUTs and DELETEs are calls: one thread of the server is the only writer.
//!
//! There is one such store, and a [`Scheme`] says where its index may hold a key: [`crate::pilaf`] and [`crate::farm`]
//! are two. An *entry* of the index names an *extent*, where the key and its value are, or has both behind it if they
//! are short ([`BypassConfig::inline_bytes`]). Clients READ while the server writes: a checksum in each entry covers the
//! entry, another the key and its value; what does not match is read again. A key that is not found is looked for again
//! if entries have moved meanwhile, so that no key is missed. A GET that is disturbed too often is made as a call.
//!
//! - [`Service`]: the server's half, a handler of calls; `index`, `extents` and `store` are what it writes.
//! - [`Look`]: one look for a key as bytes in, next READ out; `entry` is what it believes.
//! - [`Operations`]: requests of a client that are under way, their READs side by side, without thread, clock or socket.
//! - [`BypassClient`]: the client that waits.

mod client;
mod entry;
mod extents;
mod fuzz;
mod index;
mod look;
mod operations;
mod reads;
mod service;
mod store;

use std::marker::PhantomData;

use thiserror::Error;

pub use client::BypassClient;
#[doc(hidden)]
pub use fuzz::fuzz_look;
pub use look::{Look, Step, Table, Want};
pub use operations::{Answer, Calls, Ended, OperationId, Operations};
pub use service::{Service, serve};

/// Where an index may hold a key: in some groups of adjacent entries, each brought by one READ.
pub trait Scheme: sealed::Sealed + Send + 'static {
    /// Its name.
    const NAME: &'static str;
    /// Groups that may hold a key.
    const GROUPS: u32;
    /// Entries of a group.
    const SPAN: u32;
    /// Whether keys that find no place in their group go to blocks that are chained to it.
    const CHAINS: bool;
    /// The preset of its calls.
    const CALLS: &'static str;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// Sizes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BypassConfig {
    /// Entries of the index.
    pub entries: u32,
    /// Memory of the keys and values that are not in the index, in bytes. Each pair takes the next power of two, at
    /// least 64 bytes.
    pub extents_bytes: usize,
    /// The largest value, in bytes.
    pub value_max_bytes: usize,
    /// A key and its value that take no more than this, with a byte for the key's length, are in the index itself: a
    /// GET needs no READ of an extent. Every entry takes so much more memory, and every READ of entries brings it.
    pub inline_bytes: u32,
}

impl Default for BypassConfig {
    fn default() -> Self {
        Self { entries: 1 << 16, extents_bytes: 64 << 20, value_max_bytes: 64 << 10, inline_bytes: 0 }
    }
}

impl BypassConfig {
    /// Entries of the index.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Memory of the keys and values that are not in the index, in bytes.
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

    /// What a key and its value may take to be in the index.
    #[must_use]
    pub fn inline_bytes(mut self, inline_bytes: u32) -> Self {
        self.inline_bytes = inline_bytes;
        self
    }

    /// Memory that the index takes, in bytes.
    #[must_use]
    pub fn index_bytes<S: Scheme>(&self) -> usize {
        entry::Layout::of::<S>(self.entries, self.inline_bytes).index_bytes::<S>()
    }
}

/// What GETs took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounters {
    /// GETs.
    pub gets: u64,
    /// READs posted for them.
    pub reads: u64,
    /// Looks that met an entry or a value while it was changed, and were made again.
    pub torn: u64,
    /// Keys that were not found while entries moved, and looked for again.
    pub moved: u64,
    /// GETs that were made as calls, after too many looks.
    pub gets_by_call: u64,
}

/// A request to a store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BypassError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] farcall_rpc::ConnectError),
    /// The key cannot be one; nothing was sent.
    #[error(transparent)]
    Key(#[from] crate::key::KeyError),
    /// The call failed, or the store refuses: it is full, for example.
    #[error(transparent)]
    Call(#[from] farcall_rpc::CallError),
    /// A queue pair for READs cannot be had.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// What answers is no such store.
    #[error(
        "the server does not answer as a {store} store: {why}; see that client and server are of one kind and version"
    )]
    NoStore {
        /// Which kind was expected.
        store: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// READs fail, over a new connection, too.
    #[error("cannot read the store: {0}; see that the server still runs, and connect again")]
    Unreadable(String),
    /// More requests are under way than the client was made for.
    #[error("all {window} requests of the window are under way; take what ended first")]
    WindowFull {
        /// How many there may be.
        window: usize,
    },
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

/// A value of no size that stands for a scheme.
type Of<S> = PhantomData<fn() -> S>;
