//! A blocking client of a complete store over RPC: one connection to each partition; each key goes to its owner.
//!
//! ```no_run
//! use farcall_kv::client::{KvClient, Write};
//! use farcall_link::Nic;
//! use farcall_rpc::ClientOptions;
//! use farcall_softnic::SoftNic;
//!
//! let nic = Nic::open(&SoftNic::new())?;
//! let mut store = KvClient::connect(&nic, "127.0.0.1:11212", &ClientOptions::default())?;
//! store.put(b"greeting", Write::of(b"hello"))?;
//! assert_eq!(store.get(b"greeting")?.map(|item| item.value), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod many;
mod part;

use farcall_link::Nic;
use std::time::Duration;

use farcall_rpc::ClientOptions;

pub use error::{KvConnectError, KvError};
use part::Part;

use crate::key::{KeyError, Router};
use crate::store::{Counter, PutMode, Stats};
use crate::wire::client::Split;
use crate::wire::{
    MultiItem, Request, Status, decode_count, decode_item, decode_stats, decode_status, decode_version,
};

/// A value to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Write<'a> {
    /// The bytes.
    pub value: &'a [u8],
    /// Flags for use by the client.
    pub flags: u32,
    /// Time to live, in units of milliseconds; zero: unlimited.
    pub time_to_live: Duration,
    /// Condition, and position relative to an existing value.
    pub mode: PutMode,
}

impl<'a> Write<'a> {
    /// Stores `value` unconditionally and without expiration.
    #[must_use]
    pub const fn of(value: &'a [u8]) -> Self {
        Self { value, flags: 0, time_to_live: Duration::ZERO, mode: PutMode::Set }
    }

    /// Sets the flags of the client.
    #[must_use]
    pub const fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the time to live, in units of milliseconds; zero: unlimited.
    #[must_use]
    pub const fn time_to_live(mut self, time_to_live: Duration) -> Self {
        self.time_to_live = time_to_live;
        self
    }

    /// Sets a condition, or appends or prepends to the existing value.
    #[must_use]
    pub const fn mode(mut self, mode: PutMode) -> Self {
        self.mode = mode;
        self
    }

    fn put(&self, key: &'a [u8]) -> Request<'a> {
        let Self { value, flags, time_to_live, mode } = *self;
        Request::Put { key, value, flags, ttl_ms: milliseconds(time_to_live), mode }
    }
}

/// Result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The change was made. The item now has this version (a removed item had it).
    Done {
        /// Version of the item.
        version: u64,
    },
    /// The condition of the write did not hold; nothing has changed.
    NotStored,
    /// The item has another version; nothing has changed.
    OtherVersion,
    /// The key has no item; nothing has changed.
    NotFound,
}

/// A connection to each partition of a store.
pub struct KvClient {
    parts: Vec<Part>,
    router: Router,
    value_max_bytes: u64,
    request: Vec<u8>,
    reply: Vec<u8>,
    split: Split,
}

farcall_verbs::opaque_debug!(KvClient { partitions });

impl KvClient {
    /// Connects to the store whose bootstrap address is `address`, and to each of its partitions. Ignores
    /// `options.config.thread`.
    ///
    /// # Errors
    /// If a partition cannot be reached, or the server is not a store.
    pub fn connect(nic: &Nic, address: &str, options: &ClientOptions) -> Result<Self, KvConnectError> {
        let (first, identity) = Part::connect(nic, address, 0, options)?;
        let mut parts = vec![first];
        let partitions = u16::try_from(identity.partitions).unwrap_or(u16::MAX);
        let (mut answered, mut thread) = (identity, 0);
        loop {
            let same = (answered.partitions, answered.seed) == (identity.partitions, identity.seed);
            if !same || answered.partition != u32::from(thread) {
                return Err(KvConnectError::Disagreement {
                    thread,
                    partition: answered.partition,
                    partitions: answered.partitions,
                    expected: identity.partitions,
                });
            }
            thread += 1;
            if thread >= partitions {
                break;
            }
            let (part, identity) = Part::connect(nic, address, thread, options)?;
            parts.push(part);
            answered = identity;
        }
        Ok(Self {
            parts,
            router: identity.router(),
            value_max_bytes: identity.value_max_bytes,
            request: Vec::new(),
            reply: Vec::new(),
            split: Split::default(),
        })
    }

    /// Returns the number of partitions of the store.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.parts.len()
    }

    /// Returns the maximum length of a value in bytes.
    #[must_use]
    pub fn value_max_bytes(&self) -> u64 {
        self.value_max_bytes
    }

    /// Checks that `key` is valid.
    ///
    /// # Errors
    /// Returns the reason if it is not.
    pub fn check_key(&self, key: &[u8]) -> Result<(), KeyError> {
        self.router.key(key).map(drop)
    }

    /// Returns the item of a key, borrowed until the next request.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<MultiItem<'_>>, KvError> {
        self.call(key, Request::Get { key })?;
        Ok(decode_item(&self.reply)?)
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn put(&mut self, key: &[u8], write: Write<'_>) -> Result<Change, KvError> {
        self.call(key, write.put(key))?;
        change(&self.reply)
    }

    /// Stores a value if the item still has `version`. Ignores `write.mode`.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn compare_and_swap(
        &mut self,
        key: &[u8],
        version: u64,
        write: Write<'_>,
    ) -> Result<Change, KvError> {
        let Write { value, flags, time_to_live, .. } = write;
        let ttl_ms = milliseconds(time_to_live);
        self.call(key, Request::Cas { key, value, flags, ttl_ms, cas: version })?;
        change(&self.reply)
    }

    /// Removes an item; if `version` is given, only if the item has that version.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn delete(&mut self, key: &[u8], version: Option<u64>) -> Result<Change, KvError> {
        self.call(key, Request::Delete { key, cas: version.unwrap_or(0) })?;
        change(&self.reply)
    }

    /// Sets the time to live of an item (zero: unlimited). Returns whether the item exists.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn touch(&mut self, key: &[u8], time_to_live: Duration) -> Result<bool, KvError> {
        self.call(key, Request::Touch { key, ttl_ms: milliseconds(time_to_live) })?;
        match decode_status(&self.reply)? {
            (Status::Ok, _) => Ok(true),
            (Status::NotFound, _) => Ok(false),
            (status, _) => Err(unexpected(status)),
        }
    }

    /// Adds to or subtracts from a decimal number. Returns the new number, or `None` if the key does not exist.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn count(&mut self, key: &[u8], by: Counter) -> Result<Option<u64>, KvError> {
        self.call(key, Request::Count { key, by })?;
        match decode_count(&self.reply)? {
            (Status::Ok, number, _) => Ok(Some(number)),
            (Status::NotFound, ..) => Ok(None),
            (Status::NotANumber, ..) => Err(KvError::NotANumber),
            (status, ..) => Err(refused(status, &self.reply)),
        }
    }

    /// Makes all items stored so far unreachable after `delay`.
    ///
    /// # Errors
    /// [`KvError`]; earlier partitions have been flushed then.
    pub fn flush_all(&mut self, delay: Duration) -> Result<(), KvError> {
        for partition in 0..self.parts.len() {
            self.call_partition(partition, Request::FlushAll { delay_ms: milliseconds(delay) })?;
            match decode_status(&self.reply)? {
                (Status::Ok, _) => {}
                (status, _) => return Err(unexpected(status)),
            }
        }
        Ok(())
    }

    /// Returns the statistics of each partition. Those of the complete store are their sum.
    ///
    /// # Errors
    /// [`KvError`].
    pub fn stats(&mut self) -> Result<Vec<Stats>, KvError> {
        (0..self.parts.len())
            .map(|partition| {
                self.call_partition(partition, Request::Stats)?;
                Ok(decode_stats(&self.reply)?)
            })
            .collect()
    }

    /// Sends a request about `key` to its owner and stores the reply in `self.reply`.
    fn call(&mut self, key: &[u8], request: Request<'_>) -> Result<(), KvError> {
        let owner = self.router.owner(&self.router.key(key)?);
        self.call_partition(owner as usize, request)
    }

    fn call_partition(&mut self, partition: usize, request: Request<'_>) -> Result<(), KvError> {
        self.request.clear();
        request.encode(&mut self.request);
        let part = &mut self.parts[partition];
        Ok(part.call(request.method().id(), &self.request, &mut self.reply)?)
    }
}

/// Decodes the reply to a PUT, compare-and-swap or DELETE.
fn change(reply: &[u8]) -> Result<Change, KvError> {
    match decode_version(reply)? {
        (Status::Ok, version) => Ok(Change::Done { version }),
        (Status::NotFound, _) => Ok(Change::NotFound),
        (Status::NotStored, _) => Ok(Change::NotStored),
        (Status::Exists, _) => Ok(Change::OtherVersion),
        (status, _) => Err(refused(status, reply)),
    }
}

fn refused(status: Status, reply: &[u8]) -> KvError {
    match (status, decode_status(reply)) {
        (Status::TooLarge, Ok((_, body))) => match body.first_chunk() {
            Some(limit) => KvError::ValueTooLarge { max_bytes: u64::from_le_bytes(*limit) },
            None => crate::wire::ReplyError::Truncated { len_bytes: reply.len() }.into(),
        },
        (Status::OutOfMemory, _) => KvError::OutOfMemory,
        _ => unexpected(status),
    }
}

fn unexpected(status: Status) -> KvError {
    crate::wire::ReplyError::Unexpected { status }.into()
}

fn milliseconds(duration: Duration) -> u64 {
    // Rounded up, because zero means unlimited.
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
