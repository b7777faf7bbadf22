//! Where a session's operations go.

use super::command::Command;
use super::stats::ServerInfo;
use super::text::Exptime;
use super::{classic, meta};
use crate::key::{Key, KeyError};
use crate::store::Partition;

/// How the keys of one retrieval command are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retrieval {
    /// The reply tells the version (`gets`, `gats`).
    pub with_cas: bool,
    /// The item's new expiry (`gat`, `gats`).
    pub touch: Option<Exptime>,
}

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
        /// The data block.
        data: &'a [u8],
    },
    /// Makes everything unreachable after this delay, in all partitions.
    FlushAll {
        /// When.
        delay: Exptime,
        /// The answer when it is done.
        reply: &'static [u8],
    },
    /// The statistics of all partitions.
    Stats,
}

/// A parsed command with one key.
#[derive(Debug)]
pub struct KeyedCommand<'a>(pub(crate) Command<'a>);

/// What a session works on.
pub trait Target {
    /// Whether there is room for another reply. The session stops reading when there is none.
    fn has_room(&self) -> bool;

    /// Checks and hashes a key; the error is a key of illegal length.
    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Key<'k>, KeyError>;

    /// The largest value that is stored, in bytes.
    fn value_max_bytes(&self) -> usize;

    /// Takes the operation; false when it cannot be taken now, and then nothing has happened and the session offers
    /// it again. [`Op::Text`] is always taken when there is room.
    fn run(&mut self, op: Op<'_>) -> bool;
}

/// One partition, called directly.
pub struct Direct<'a> {
    /// The partition.
    pub partition: &'a mut Partition,
    /// Milliseconds since the Unix epoch.
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

    #[inline]
    fn run(&mut self, op: Op<'_>) -> bool {
        match op {
            Op::Text(text) => self.out.extend_from_slice(text),
            Op::Get { key, retrieval } => execute_get(&key, retrieval, self.partition, self.now_ms, self.out),
            Op::Keyed { key, command, data, .. } => {
                execute(&key, &command.0, data, self.partition, self.now_ms, self.out);
            }
            Op::FlushAll { delay, reply } => {
                self.partition.flush_all(delay.to_flush_ms(self.now_ms), self.now_ms);
                self.out.extend_from_slice(reply);
            }
            Op::Stats => super::stats::render(&self.partition.stats(), self.info, self.now_ms, self.out),
        }
        true
    }
}

/// Looks one key up on its partition.
pub(crate) fn execute_get(
    key: &Key<'_>,
    retrieval: Retrieval,
    partition: &mut Partition,
    now_ms: u64,
    out: &mut Vec<u8>,
) {
    classic::get(retrieval, key, partition, now_ms, out);
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
        Command::Store(line) => out.extend_from_slice(classic::store(line, key, data, partition, now_ms)),
        Command::Meta(line) => meta::execute(line, key, data, partition, now_ms, out),
        other => classic::change(other, key, partition, now_ms, out),
    }
    if command.noreply() {
        out.truncate(start);
    }
}
