//! Interface between a session and the store.

use std::os::fd::RawFd;

use super::change::Change;
use super::command::{Command, Retrieval};
#[cfg(feature = "server")]
use super::meta_flags::MetaKind;
use super::refusal::TOO_LARGE;
use super::stats::{Report, ServerInfo, list_prefixes};
use super::{classic, dump, meta};
use crate::key::{Key, KeyError};
use crate::store::Partition;

/// One operation of a session. Replies are in the order of the operations.
#[derive(Debug)]
pub enum Op<'a> {
    /// A reply that needs no store.
    Text(&'a [u8]),
    /// One key of a retrieval; the reply is its `VALUE` block, or empty.
    Get {
        /// The key.
        key: Key<'a>,
        /// Options of the retrieval.
        retrieval: Retrieval,
    },
    /// A complete command with one key.
    Keyed {
        /// The key, decoded.
        key: Key<'a>,
        /// The command line without its end, so that another thread can parse it again.
        line: &'a [u8],
        /// The parsed line.
        command: &'a KeyedCommand<'a>,
        /// The data block; empty if it is too large to be stored.
        data: &'a [u8],
    },
    /// A change of all partitions.
    Everywhere {
        /// The change.
        change: Change,
        /// The reply after completion.
        reply: &'static [u8],
    },
    /// The statistics of all partitions.
    Report(Report),
    /// The counters for each prefix of keys, summed over all partitions.
    ListPrefixes,
    /// Some of the open connections.
    ListConnections {
        /// Descriptor of the last connection listed; [`ALL_LISTED`] if there are no more.
        after: &'a mut RawFd,
    },
    /// One part of a listing of all items, which has [`Target::dump_parts`] parts.
    Dump {
        /// Number of the part.
        part: u64,
    },
    /// The same for the connection's partition only: its parts are first, and later parts are empty.
    ShortDump {
        /// Number of the part.
        part: u64,
        /// Maximum number of items that remain to be listed.
        left: &'a mut u64,
    },
}

/// A parsed command with one key.
#[derive(Debug)]
pub struct KeyedCommand<'a>(pub(crate) Command<'a>);

impl KeyedCommand<'_> {
    /// Returns whether the reply contains the value.
    #[cfg(feature = "server")]
    pub(crate) fn reads_value(&self) -> bool {
        matches!(&self.0, Command::Meta(line) if line.kind == MetaKind::Get && line.wants_value)
    }
}

/// Follows the last connection of a list.
pub const ALL_LISTED: RawFd = RawFd::MAX;

/// The store that a session operates on.
pub trait Target {
    /// Returns whether there is room for another reply. Without room the session stops reading.
    fn has_room(&self) -> bool;

    /// Validates and hashes a key; fails if its length is invalid.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError>;

    /// Returns the maximum length of a value in bytes.
    fn value_max_bytes(&self) -> usize;

    /// Returns the number of parts of a listing of all items.
    fn dump_parts(&self) -> u64;

    /// Executes the operation. Returns false if it cannot be accepted now; nothing has changed then, and the session
    /// repeats it later. [`Op::Text`] is always accepted while there is room.
    fn run(&mut self, op: Op<'_>) -> bool;
}

/// One partition, called directly.
pub struct Direct<'a> {
    /// The partition.
    pub partition: &'a mut Partition,
    /// The partition's time, in milliseconds.
    pub now_ms: u64,
    /// Buffer for replies.
    pub out: &'a mut Vec<u8>,
    /// Length of the replies in bytes at which no further operation starts.
    pub out_max_bytes: usize,
    /// State of the server for `stats`.
    pub info: &'a ServerInfo,
}

impl Target for Direct<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.out.len() < self.out_max_bytes
    }

    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError> {
        self.partition.key(bytes)
    }

    fn value_max_bytes(&self) -> usize {
        self.partition.config().value_max_bytes
    }

    fn dump_parts(&self) -> u64 {
        u64::from(self.partition.listing_parts())
    }

    #[inline]
    fn run(&mut self, op: Op<'_>) -> bool {
        match op {
            Op::Text(text) => self.out.extend_from_slice(text),
            Op::Get { key, retrieval } => {
                classic::get(&key, retrieval, self.partition, self.now_ms, self.out)
            }
            Op::Keyed { key, command, data, .. } => {
                execute(&key, &command.0, data, self.partition, self.now_ms, self.out);
            }
            Op::Everywhere { change, reply } => {
                self.out.extend_from_slice(change.reply_or_error(reply, self.partition));
                change.apply(self.partition, self.now_ms);
            }
            Op::Report(report) => report.render(&self.partition.stats(), self.info, self.now_ms, self.out),
            Op::ListPrefixes => list_prefixes(&self.partition.prefixes, self.out),
            // A target without sockets has no connections to list.
            Op::ListConnections { after } => *after = ALL_LISTED,
            Op::Dump { part } => dump::execute(part as u32, self.partition, self.now_ms, self.out),
            Op::ShortDump { part, left } => {
                dump::execute_short(part, left, self.partition, self.now_ms, self.out);
            }
        }
        true
    }
}

/// Executes a command with one key on its partition and writes the reply, unless the command has `noreply`.
pub(crate) fn execute(
    key: &Key<'_>,
    command: &Command<'_>,
    data: &[u8],
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    match command {
        Command::Store(_) => partition.prefixes.note(key.bytes(), |counts| counts.sets += 1),
        Command::Delete { .. } => partition.prefixes.note(key.bytes(), |counts| counts.deletes += 1),
        _ => {}
    }
    match command {
        _ if command.block_bytes().is_some_and(|bytes| bytes != data.len() as u64) => {
            partition.note_too_large(key, command.overwrites(), now_ms);
            out.extend_from_slice(TOO_LARGE);
        }
        Command::Store(line) => out.extend_from_slice(classic::store(line, key, data, partition, now_ms)),
        Command::Meta(line) => meta::execute(line, key, data, partition, now_ms, out),
        other => classic::change(other, key, partition, now_ms, out),
    }
    if command.noreply() {
        out.truncate(start);
    }
}
