//! What a client's address space is made of, and how its requests end.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use farcall_io::Window;
use farcall_link::bootstrap::Secret;
use thiserror::Error;

use super::history::History;

/// Bytes of a page: what is replicated, checked and repaired as one.
pub const PAGE_BYTES: usize = 4096;

/// Bytes that may be in flight to one node; more waits, and is merged meanwhile.
pub const WINDOW_BYTES: u64 = Window::PAPER.bytes;

/// Nodes of one client.
const NODES_MAX: u64 = 256;

/// Sizes and limits of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// What nodes call it, for people.
    pub name: String,
    /// Bootstrap addresses of the nodes.
    pub nodes: Vec<String>,
    /// Nodes that there may be in time, with those that join: room for their completions is made at the start. If it is
    /// less than there are in `nodes`, no other can join.
    pub nodes_max: usize,
    /// Bytes of the address space, whole pages. Slabs are taken when they are first written to.
    pub size_bytes: u64,
    /// Replicas of each page, on different nodes. With fewer nodes there are as many as nodes.
    pub replicas: usize,
    /// Bytes that each slab is used for: no more than the slabs of the nodes have.
    pub slab_bytes: u64,
    /// How long a node may be out of reach until its replicas are made anew elsewhere, if others have the same pages.
    pub suspect_after: Duration,
    /// How long a request tries before it ends with [`IoError::Unreachable`].
    pub patience: Duration,
    /// Pages of requests that are not over.
    pub pages_max: usize,
    /// Queue pairs with each node.
    pub connections: usize,
    /// Registered memory for each node, that pages are copied through.
    pub pool_bytes: usize,
    /// Whether a thread that asks a [`RemoteMemory`](crate::RemoteMemory) drives its engine for a while: best where
    /// programs wait for one request at a time. Otherwise its own thread does, which polls on while requests come: best
    /// for many that come together. While threads compete for the processors callers drive all the same.
    pub callers_drive: bool,
    /// Pages of the periodic scrub in a second: it reads every replica of every page, one after another, and repairs what
    /// is wrong. 0 turns it off.
    pub scrub_pages_per_s: usize,
    /// Where slabs go when no node has room: a file of this client's own, which is removed at its end.
    pub spill: Option<PathBuf>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            name: format!("pid {}", std::process::id()),
            nodes: Vec::new(),
            nodes_max: 0,
            size_bytes: 1 << 30,
            replicas: 2,
            slab_bytes: 64 << 20,
            suspect_after: Duration::from_millis(500),
            patience: Duration::from_secs(10),
            pages_max: 4_096,
            connections: 2,
            pool_bytes: 4 << 20,
            callers_drive: true,
            scrub_pages_per_s: 64,
            spill: None,
        }
    }
}

impl ClientConfig {
    /// Nodes that there is room for.
    pub(super) fn node_room(&self) -> usize {
        self.nodes.len().max(self.nodes_max)
    }

    /// Whether every number is in its range.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let page = PAGE_BYTES as u64;
        let ranges = [
            ("nodes", self.nodes.len() as u64, 1, NODES_MAX),
            ("nodes_max", self.nodes_max as u64, 0, NODES_MAX),
            ("size_bytes", self.size_bytes, page, 1 << 50),
            ("replicas", self.replicas as u64, 1, 8),
            ("slab_bytes", self.slab_bytes, page, 1 << 30),
            ("size_bytes / slab_bytes", self.size_bytes.div_ceil(self.slab_bytes.max(1)), 1, 1 << 16),
            ("pages_max", self.pages_max as u64, 256, 1 << 16),
            ("connections", self.connections as u64, 1, 8),
            ("pool_bytes", self.pool_bytes as u64, 16 * page, 1 << 30),
            ("scrub_pages_per_s", self.scrub_pages_per_s as u64, 0, 1 << 20),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(OpenError::Range { name, value, min, max });
            }
        }
        for (name, value) in [("size_bytes", self.size_bytes), ("slab_bytes", self.slab_bytes)] {
            if !value.is_multiple_of(page) {
                return Err(OpenError::NotPages { name, value });
            }
        }
        Ok(())
    }
}

/// A volume: an address space that nodes keep under a name when its client is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    pub(super) name: String,
    pub(super) key: Secret<[u8; 32]>,
    pub(super) holder: Secret<[u8; 16]>,
    pub(super) notes_bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) survivor: Option<String>,
    pub(super) history: History,
}

impl VolumeConfig {
    /// A volume, by what people call it. Half of the key proves to nodes that it is one's own; the other half stays
    /// here, and keys checksums. The holder is drawn at random: while nodes hear of it, nobody gets the volume who has
    /// another. There is room for so many bytes of notes at each node.
    pub fn new(name: String, key: [u8; 32], holder: [u8; 16], notes_bytes: u64) -> Self {
        let (key, holder) = (Secret(key), Secret(holder));
        let (is_read_only, survivor, history) = (false, None, History::default());
        Self { name, key, holder, notes_bytes, is_read_only, survivor, history }
    }

    /// Claims the volume to read it only: then also if pages are missing ([`Takeover::missing`]). Writes and notes end with
    /// [`IoError::ReadOnly`]. Where pages are stays as it is noted: nodes that are absent are not made up for.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Believes the nodes that reply, if this one (by its address) does, although others may know newer bytes: for a
    /// volume whose other nodes are gone for good. What they alone knew is lost. No other client may use the volume.
    #[must_use]
    pub fn survivor(mut self, address: String) -> Self {
        self.survivor = Some(address);
        self
    }
}

/// What an earlier client left of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Of this client: higher than those of all before.
    pub epoch: u64,
    /// There was none.
    pub is_new: bool,
    /// Bytes that were written and that no node has: none, unless it was claimed with [`VolumeConfig::read_only`].
    pub missing: Vec<Range<u64>>,
    /// The nodes that have it now, by their addresses.
    pub nodes: Vec<String>,
    /// The notes of the user's, as each member has them. Those that were told to be noted are in all of them.
    pub notes: Vec<Vec<u8>>,
}

/// Why there is no address space.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A number is impossible.
    #[error("{name} is {value}: from {min} to {max}")]
    Range {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A size is not of whole pages.
    #[error("{name} is {value}: make it a multiple of {PAGE_BYTES}")]
    NotPages {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
    },
    /// No node can be used.
    #[error("no memory node can be used: {0}")]
    NoNode(String),
    /// What another process kept is of no use.
    #[error("cannot go on with what the last process kept: {0}")]
    Kept(String),
    /// Another client has the volume.
    #[error("{0}; try again after it has ended")]
    Held(String),
    /// The volume cannot be had.
    #[error("the volume {name:?} cannot be had: {why}")]
    Volume {
        /// Which.
        name: String,
        /// Why not.
        why: String,
    },
    /// No node that replied has some bytes that were written.
    #[error(
        "the volume {name:?} is incomplete: no node that answers has bytes {}; {why}",
        list(.missing)
    )]
    Incomplete {
        /// Which volume.
        name: String,
        /// Which bytes.
        missing: Vec<Range<u64>>,
        /// What may be done.
        why: String,
    },
    /// The device has no room.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The system gives no thread, descriptor, file or random number.
    #[error("cannot begin: {0}")]
    System(#[from] std::io::Error),
}

/// Maximum number of ranges that an error names.
const RANGES_MAX: usize = 8;

fn list(ranges: &[Range<u64>]) -> String {
    let shown: Vec<String> = ranges.iter().take(RANGES_MAX).map(|range| format!("{range:?}")).collect();
    let more = ranges.len().saturating_sub(RANGES_MAX);
    let rest = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
    shown.join(", ") + &rest
}

impl OpenError {
    pub(super) fn volume(name: &str, why: impl Into<String>) -> Self {
        Self::Volume { name: name.to_owned(), why: why.into() }
    }
}

/// What a client asks of its address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the caller calls it.
    pub token: u64,
    /// The first byte.
    pub offset: u64,
    /// What to do there.
    pub work: Work,
}

/// What a request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads so many bytes. What was never written is zero.
    Read {
        /// How many.
        len_bytes: usize,
    },
    /// Writes these bytes.
    Write(Bytes),
    /// Writes these bytes to the notes of a volume: done when every member has them. Offsets are of notes.
    Note(Vec<u8>),
    /// Reads every replica of every page that was written, and repairs what is wrong. Offsets are of no account.
    Scrub,
}

/// A request that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The caller's name for it.
    pub token: u64,
    /// What was read, or an empty vector.
    pub result: Result<Vec<u8>, IoError>,
}

/// Why a request brought nothing. After a write that failed its pages hold what they held before, or what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IoError {
    /// No replica has the bytes that were written.
    #[error("page {page} is lost: no memory node has what was written there; write it anew")]
    Lost {
        /// Which page.
        page: u64,
    },
    /// Nodes that have it, or would, do not answer.
    #[error("page {page} cannot be reached: its memory nodes do not answer; see: farcall memory status")]
    Unreachable {
        /// Which page.
        page: u64,
    },
    /// There is no slab for it.
    #[error("page {page} has no place: no memory node has a free slab; add nodes or memory, or a spill file")]
    NoRoom {
        /// Which page.
        page: u64,
    },
    /// The volume was claimed to be read only.
    #[error("the volume was claimed to be read only")]
    ReadOnly,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// Nodes did not hear of this client in time: another one may have the volume.
    #[error("the volume is lost to this client: too many nodes did not hear of it in time; mount it again")]
    Fenced,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It is not inside of the address space, or empty.
    #[error("{len_bytes} bytes at {offset} are not inside of an address space of {size_bytes} bytes")]
    Range {
        /// The first byte.
        offset: u64,
        /// How many.
        len_bytes: usize,
        /// How many there are.
        size_bytes: u64,
    },
    /// Too much is not over.
    #[error("{pages} pages are not over, and {pages_max} may be; wait for some, or ask for less at once")]
    Full {
        /// How many are.
        pages: usize,
        /// How many may be.
        pages_max: usize,
    },
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages read for requests.
    pub pages_read: u64,
    /// Pages written for requests.
    pub pages_written: u64,
    /// Of these and of those read, pages that went together with others, in one piece of I/O.
    pub pages_together: u64,
    /// Pieces of I/O for several pages that did not bring all of them: pages went on one by one.
    pub runs_broken: u64,
    /// Pages of a replica whose bytes were wrong.
    pub wrong: u64,
    /// Pages of a replica that were written anew for that.
    pub repaired: u64,
    /// Requests for a page that ended with [`IoError::Lost`].
    pub lost: u64,
    /// Replicas that were given up: their node was out of reach, forgot them or wants its memory back.
    pub replicas_dropped: u64,
    /// Pages copied to new replicas.
    pub copied: u64,
    /// Pages that a scrub looked at.
    pub scrubbed: u64,
    /// Requests whose threads drove them until they were over, without a wake-up of another thread
    /// ([`RemoteMemory`](crate::RemoteMemory) alone).
    pub driven_by_callers: u64,
}

/// How an address space stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Its nodes.
    pub nodes: Vec<DonorStatus>,
    /// Slabs' worth of the address space that were written to.
    pub extents: usize,
    /// Of these, with fewer replicas in sync than asked for.
    pub degraded: usize,
    /// Slabs' worth with a replica that is being made.
    pub copying: usize,
    /// Of these, with no replica at all.
    pub lost: usize,
    /// Of these, with a replica in the spill file.
    pub spilled: usize,
    /// Local memory that keeps track of pages, in bytes.
    pub table_bytes: usize,
    /// What happened so far.
    pub counts: Counts,
}

/// What a client knows of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorStatus {
    /// Where it is.
    pub address: String,
    /// Whether it can be used.
    pub link: LinkStatus,
    /// Replicas there.
    pub replicas: usize,
    /// What went wrong last.
    pub problem: Option<String>,
}

/// Whether a node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// It was never reached, or not since it was lost.
    Down,
    /// It is used.
    Up,
    /// It is used, and wants its memory back.
    Draining,
}
