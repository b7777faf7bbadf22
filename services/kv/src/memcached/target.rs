//! Where a session's operations go.

use std::os::fd::RawFd;

use super::command::{Command, Retrieval};
#[cfg(feature = "server")]
use super::meta_flags::MetaKind;
use super::refusal::TOO_LARGE;
use super::stats::{Report, ServerInfo, list_prefixes};
use super::text::Exptime;
use super::{classic, dump, meta};
use crate::key::{Key, KeyError};
use crate::store::Partition;

/// One operation of a session. Replies appear in the order of the operations.
#[derive(Debug)]
pub enum Op<'a> {
    /// A reply that needs no store.
    Text(&'a [u8]),
    /// One key of a retrieval: its `VALUE` block, or nothing.
    Get {
        /// The key.
        key: Key<'a>,
        /// How.
        retrieval: Retrieval,
    },
    /// A whole command with one key.
    Keyed {
        /// The key, decoded.
        key: Key<'a>,
        /// The command line, without its end: another thread can parse it again.
        line: &'a [u8],
        /// The line, parsed.
        command: &'a KeyedCommand<'a>,
        /// The data block; empty if it is too large to be stored.
        data: &'a [u8],
    },
    /// A change of all partitions.
    Everywhere {
        /// The change.
        change: Change,
        /// The answer when it is done.
        reply: &'static [u8],
    },
    /// The statistics of all partitions.
    Report(Report),
    /// What was counted for each prefix of keys, in all partitions together.
    ListPrefixes,
    /// Some of the open connections.
    ListConnections {
        /// The descriptor of the last one that was listed; [`ALL_LISTED`] once there are no more.
        after: &'a mut RawFd,
    },
    /// One part of the list of all items, of [`Target::dump_parts`].
    Dump {
        /// Which one.
        part: u64,
    },
    /// The same of the connection's partition alone: its parts come first, the others have nothing.
    ShortDump {
        /// Which one.
        part: u64,
        /// How many items may still be listed.
        left: &'a mut u64,
    },
}

/// What a command changes in every partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Everything becomes unreachable after this delay.
    FlushAll(Exptime),
    /// Commands are counted by the prefix of their keys, or no more.
    CountPrefixes(bool),
    /// What was counted starts at zero again.
    ResetStats,
    /// The memory of all partitions together is limited.
    LimitMemory {
        /// To how much.
        limit_bytes: u64,
    },
}

impl Change {
    /// Makes the change in one partition.
    pub(crate) fn make(self, partition: &mut Partition, now_ms: u64) {
        match self {
            Change::FlushAll(delay) => {
                partition.flush_all(delay.to_flush_ms(now_ms, partition.wall()), now_ms);
            }
            Change::CountPrefixes(counting) => partition.prefixes.count(counting),
            Change::ResetStats => partition.reset_stats(),
            Change::LimitMemory { limit_bytes } => {
                partition.limit_memory(share_bytes(limit_bytes, partition));
            }
        }
    }

    /// The answer: `reply`, or why the change cannot be made. All partitions agree on that.
    pub(crate) fn answer(self, reply: &'static [u8], partition: &Partition) -> &'static [u8] {
        match self {
            Change::LimitMemory { limit_bytes }
                if !reply.is_empty() && !partition.can_limit_memory(share_bytes(limit_bytes, partition)) =>
            {
                b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"
            }
            _ => reply,
        }
    }
}

/// One partition's share of the memory.
fn share_bytes(limit_bytes: u64, partition: &Partition) -> usize {
    (limit_bytes / u64::from(partition.config().partitions)) as usize
}

/// A parsed command with one key.
#[derive(Debug)]
pub struct KeyedCommand<'a>(pub(crate) Command<'a>);

impl KeyedCommand<'_> {
    /// Whether the reply holds the value.
    #[cfg(feature = "server")]
    pub(crate) fn reads_value(&self) -> bool {
        matches!(&self.0, Command::Meta(line) if line.kind == MetaKind::Get && line.wants_value)
    }
}

/// Behind the last connection of a list.
pub const ALL_LISTED: RawFd = RawFd::MAX;

/// What a session works on.
pub trait Target {
    /// Whether there is room for another reply. The session stops reading when there is none.
    fn has_room(&self) -> bool;

    /// Checks and hashes a key; the error is a key of illegal length.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError>;

    /// The largest value that is stored, in bytes.
    fn value_max_bytes(&self) -> usize;

    /// In how many parts a list of all items comes.
    fn dump_parts(&self) -> u64;

    /// Takes the operation; false when it cannot be taken now, and then nothing has happened and the session offers
    /// it again. [`Op::Text`] is always taken when there is room.
    fn run(&mut self, op: Op<'_>) -> bool;
}

/// One partition, called directly.
pub struct Direct<'a> {
    /// The partition.
    pub partition: &'a mut Partition,
    /// The partition's time, in milliseconds.
    pub now_ms: u64,
    /// Where replies go.
    pub out: &'a mut Vec<u8>,
    /// No further operation is begun while the replies have at least this many bytes.
    pub out_max_bytes: usize,
    /// What `stats` says about the server.
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
                self.out.extend_from_slice(change.answer(reply, self.partition));
                change.make(self.partition, self.now_ms);
            }
            Op::Report(report) => report.render(&self.partition.stats(), self.info, self.now_ms, self.out),
            Op::ListPrefixes => list_prefixes(&self.partition.prefixes, self.out),
            // There are no sockets.
            Op::ListConnections { after } => *after = ALL_LISTED,
            Op::Dump { part } => dump::execute(part as u32, self.partition, self.now_ms, self.out),
            Op::ShortDump { part, left } => {
                dump::execute_short(part, left, self.partition, self.now_ms, self.out);
            }
        }
        true
    }
}

/// Executes a command with one key on its partition and writes the reply, unless it wants none.
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
