//! Configuration of a client's address space, its requests and their results.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use farcall_io::Window;
use farcall_link::bootstrap::Secret;
use thiserror::Error;

use super::history::{History, ViewHistory};

/// Length of a page in bytes: the unit of replication, checksums and repair.
pub const PAGE_BYTES: usize = 4096;

/// Maximum number of bytes in flight to one node. Further requests wait and are merged in the meantime.
pub const WINDOW_BYTES: u64 = Window::PAPER.bytes;

/// Maximum number of nodes of one client.
const NODES_MAX: u64 = 256;

/// Sizes and limits of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Name of the client at the nodes, for display.
    pub name: String,
    /// Bootstrap addresses of the nodes.
    pub nodes: Vec<String>,
    /// Maximum number of nodes, including those that join later: the completion queue is sized for them at creation.
    /// If it is less than the number of `nodes`, no other node can join.
    pub nodes_max: usize,
    /// Length of the address space in bytes, a multiple of [`PAGE_BYTES`]. Slabs are requested when they are first
    /// written to.
    pub size_bytes: u64,
    /// Number of replicas of each page, on different nodes. With fewer nodes there is one replica per node.
    pub replicas: usize,
    /// Length in bytes of the part of each slab that is used; at most the length of the nodes' slabs.
    pub slab_bytes: u64,
    /// Time for which a node may be unreachable before its replicas are re-created elsewhere, provided that other
    /// replicas of the same pages exist.
    pub suspect_after: Duration,
    /// Timeout of a request, after which it fails with [`IoError::Unreachable`].
    pub patience: Duration,
    /// Maximum number of pages of requests in progress.
    pub pages_max: usize,
    /// Number of queue pairs per node.
    pub connections: usize,
    /// Length in bytes of the registered memory per node through which pages are copied.
    pub pool_bytes: usize,
    /// `true` if a thread that issues a request to a [`RemoteMemory`](crate::RemoteMemory) drives its engine for a
    /// short time: best for programs that wait for one request at a time. Otherwise the engine's own thread drives it
    /// and polls while requests arrive: best for many concurrent requests. While threads compete for the processors,
    /// callers drive the engine in both cases.
    pub caller_polling: bool,
    /// Maximum number of pages per second of the periodic scrub, which reads every replica of every page in order and
    /// repairs wrong ones. 0 disables it.
    pub scrub_pages_per_s: usize,
    /// Path of the spill file, for slabs that no node has capacity for. The client creates the file and unlinks it at
    /// once.
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
            caller_polling: true,
            scrub_pages_per_s: 64,
            spill: None,
        }
    }
}

impl ClientConfig {
    /// Returns the maximum number of nodes.
    pub(super) fn max_nodes(&self) -> usize {
        self.nodes.len().max(self.nodes_max)
    }

    /// Checks that every number is in its range.
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

/// A volume: an address space that nodes retain under a name when its client has exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    pub(super) name: String,
    pub(super) key: Secret<[u8; 32]>,
    pub(super) holder: Secret<[u8; 16]>,
    pub(super) metadata_bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) survivor: Option<String>,
    pub(super) history: History,
}

impl VolumeConfig {
    /// Creates the configuration of a volume with this name. The first half of the key authorizes the client at the
    /// nodes. The second half stays in this process and keys checksums. The holder is a random number: while the lease
    /// of a mount is valid, no client with another one can claim the volume. Each node stores `metadata_bytes` bytes of
    /// user metadata.
    pub fn new(name: String, key: [u8; 32], holder: [u8; 16], metadata_bytes: u64) -> Self {
        let (key, holder) = (Secret(key), Secret(holder));
        let (is_read_only, survivor, history) = (false, None, History::default());
        Self { name, key, holder, metadata_bytes, is_read_only, survivor, history }
    }

    /// Claims the volume for reading only, even if pages are missing ([`Takeover::missing`]). Writes of data and
    /// metadata fail with [`IoError::ReadOnly`]. The recorded placement does not change: replicas on absent nodes are
    /// not re-created.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Accepts the state of the nodes that reply, if the node with this address is one of them, although others may
    /// have newer data: for a volume whose other nodes are lost permanently. Data that only those had is lost. No
    /// other client may use the volume.
    #[must_use]
    pub fn survivor(mut self, address: String) -> Self {
        self.survivor = Some(address);
        self
    }

    /// Records views in `history`. A successor with the same history accepts the replies of half of the newest view's
    /// nodes if that view is the last one committed and the other half cannot have a later one: no other client can
    /// have changed the volume then. The successor does not create the volume again.
    #[must_use]
    pub fn with_history(mut self, history: Arc<dyn ViewHistory>) -> Self {
        self.history = History::recorded_by(history);
        self
    }
}

/// State of a volume that an earlier client left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Epoch of this client, higher than those of all earlier ones.
    pub epoch: u64,
    /// `true` if the volume did not exist.
    pub is_new: bool,
    /// Ranges in bytes that were written and that no node has: none, unless the volume was claimed with
    /// [`VolumeConfig::read_only`].
    pub missing: Vec<Range<u64>>,
    /// Addresses of the nodes that have the volume now.
    pub nodes: Vec<String>,
    /// User metadata as each member has it. All of them contain every write that was acknowledged.
    pub metadata: Vec<Vec<u8>>,
}

/// Reason why an address space cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A number is out of range.
    #[error("{name} is {value}: from {min} to {max}")]
    Range {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
    },
    /// A size is not a multiple of the page length.
    #[error("{name} is {value}: make it a multiple of {PAGE_BYTES}")]
    NotPages {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: u64,
    },
    /// No node can be used.
    #[error("no memory node can be used: {0}")]
    NoNode(String),
    /// The recovery file of an earlier process cannot be used.
    #[error("cannot continue from the state that the last process stored: {0}")]
    Saved(String),
    /// Another client holds the volume.
    #[error("{0}; try again after it has ended")]
    Held(String),
    /// The volume cannot be claimed.
    #[error("the volume {name:?} cannot be had: {why}")]
    Volume {
        /// Name of the volume.
        name: String,
        /// Reason.
        why: String,
    },
    /// No node that replied has certain bytes that were written.
    #[error(
        "the volume {name:?} is incomplete: no node that answers has bytes {}; {why}",
        list(.missing)
    )]
    Incomplete {
        /// Name of the volume.
        name: String,
        /// Ranges in bytes.
        missing: Vec<Range<u64>>,
        /// Remedy.
        why: String,
    },
    /// The device lacks resources.
    #[error(transparent)]
    Verbs(#[from] farcall_verbs::Error),
    /// The operating system cannot provide a thread, descriptor, file or random number.
    #[error("cannot open the address space")]
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

/// Request of a client to its address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Token chosen by the caller.
    pub token: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// The operation.
    pub work: Work,
}

/// Operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads bytes. Bytes that were never written are zero.
    Read {
        /// Number of bytes.
        len_bytes: usize,
    },
    /// Writes these bytes.
    Write(Bytes),
    /// Writes these bytes to the user metadata of a volume; completes when every member has them. The offset is
    /// relative to the user metadata.
    WriteMetadata(Vec<u8>),
    /// Reads every replica of every page that was written and repairs wrong ones. The offset is ignored.
    Scrub,
}

/// A completed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Token chosen by the caller.
    pub token: u64,
    /// The bytes that were read; empty for other requests.
    pub result: Result<Vec<u8>, IoError>,
}

/// Result of a request.
pub(super) type Result<T, E = IoError> = std::result::Result<T, E>;

/// Reason why a request failed. After a failed write each of its pages holds its earlier content or the bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IoError {
    /// No replica has the bytes that were written.
    #[error("page {page} is lost: no memory node has its contents; write it again")]
    Lost {
        /// Index of the page.
        page: u64,
    },
    /// The nodes that have the page, or should store it, do not reply.
    #[error("page {page} cannot be reached: its memory nodes do not answer; see: farcall memory status")]
    Unreachable {
        /// Index of the page.
        page: u64,
    },
    /// No slab is available for the page.
    #[error("page {page} has no place: no memory node has a free slab; add nodes or memory, or a spill file")]
    NoRoom {
        /// Index of the page.
        page: u64,
    },
    /// The volume was claimed for reading only.
    #[error("the volume was claimed to be read only")]
    ReadOnly,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
    /// The client could not renew its leases in time: another client may hold the volume.
    #[error("the volume is lost to this client: too many nodes were not reached in time; mount it again")]
    Fenced,
}

/// Reason why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The range is not within the address space, or it is empty.
    #[error("{len_bytes} bytes at {offset} are not inside of an address space of {size_bytes} bytes")]
    Range {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len_bytes: usize,
        /// Length of the address space in bytes.
        size_bytes: u64,
    },
    /// Too many pages are in progress.
    #[error("{pages} pages are not over, and {pages_max} may be; wait for some, or ask for less at once")]
    Full {
        /// Number of pages in progress.
        pages: usize,
        /// Maximum number of pages in progress.
        pages_max: usize,
    },
}

/// Counts since the client started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages read for requests.
    pub pages_read: u64,
    /// Pages written for requests.
    pub pages_written: u64,
    /// Pages of these two counts that were transferred in runs: several pages by one I/O request.
    pub pages_together: u64,
    /// Runs that failed for at least one page; such pages continued as operations of their own.
    pub runs_broken: u64,
    /// Pages of replicas whose bytes were wrong.
    pub wrong: u64,
    /// Wrong pages of replicas that were overwritten with the right bytes.
    pub repaired: u64,
    /// Requests for a page that failed with [`IoError::Lost`].
    pub lost: u64,
    /// Replicas that were dropped: their node was unreachable, no longer had them, or is draining.
    pub replicas_dropped: u64,
    /// Pages copied to new replicas.
    pub copied: u64,
    /// Pages read by scrubs.
    pub scrubbed: u64,
    /// Requests that completed while their threads drove the engine, without a wake-up of another thread (only
    /// [`RemoteMemory`](crate::RemoteMemory) counts them).
    pub driven_by_callers: u64,
}

/// Status of an address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Status of its nodes.
    pub nodes: Vec<MemoryNodeStatus>,
    /// Number of extents (slabs' worth of the address space) that were written to.
    pub extents: usize,
    /// Number of these extents with fewer in-sync replicas than configured.
    pub degraded: usize,
    /// Number of these extents with a replica that is being created.
    pub copying: usize,
    /// Number of these extents without a replica.
    pub lost: usize,
    /// Number of these extents with a replica in the spill file.
    pub spilled: usize,
    /// Length of the page tables in local memory, in bytes.
    pub table_bytes: usize,
    /// Counts since the client started.
    pub counts: Counts,
}

/// Status of a node, as known to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNodeStatus {
    /// Bootstrap address of the node.
    pub address: String,
    /// State of the session with it.
    pub link: LinkStatus,
    /// Number of replicas on it.
    pub replicas: usize,
    /// Latest error; `None` if there is none.
    pub problem: Option<String>,
}

/// Whether a node can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// There is no session with it.
    Down,
    /// The node is in use.
    Up,
    /// The node is in use and draining.
    Draining,
}
