//! A client's address space, without thread, clock or socket. It accepts requests and returns completed ones; it
//! returns calls to nodes and accepts their replies; it transfers data over the sessions of `farcall-io`.
//!
//! Requests are split into operations on one page each. Invariant: at most one operation holds a page; later
//! operations on it queue in FIFO order. Hence no page is read or written while it is written, copied, checked or
//! repaired. Consecutive full pages that need no special treatment form a *run* instead: one I/O request for all of
//! them.

mod attach_volume;
mod io;
mod joining_node;
mod maintenance;
mod members;
mod metadata;
mod metadata_write;
mod operation;
mod part;
mod redo;
mod redundancy;
mod replay;
mod requests;
mod resume;
mod runs;
mod scrub;
mod sessions;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use farcall_io::{Handler, Poller, PollerConfig, TransferCompletion};
use farcall_link::{Nic, SplitMix64};
use farcall_verbs::{Endpoint, Nanos, Progress, WaitSet};

use super::PAGE_BYTES;
use super::buffers::Buffers;
use super::config::{ClientConfig, CompletedRequest, Counts, IoError, OpenError, SpaceStatus};
use super::extent::{Extent, Replica};
use super::node_client::MemoryNodeClient;
use super::pages::PageChecksums;
use super::recovery_file::RecoveryFile;
use super::spill::SpillFile;
use joining_node::ChunkTag;
use metadata::MetadataReplication;
use operation::Operation;
use redo::RedoLog;
use redundancy::RedundancyReports;
use requests::Requests;
use runs::{RunTag, Runs};
use scrub::PeriodicScrub;

/// Purpose of an I/O request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    Page(PageTag),
    Run(RunTag),
    /// A metadata write to a member.
    Metadata {
        write: u32,
        node: usize,
    },
    /// A chunk of metadata, read from a member or written to the joining node.
    Chunk(usize, ChunkTag),
}

/// The operation and the replica of an I/O request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTag {
    operation: u32,
    replica: u32,
}

/// Queue of completed I/O requests, until the engine takes them.
#[derive(Clone, Default)]
pub(super) struct CompletionSink(Arc<Mutex<Vec<TransferCompletion<Tag>>>>);

impl Handler for CompletionSink {
    type Context = Tag;

    fn on_completion(&self, completion: TransferCompletion<Tag>) {
        // The vector is consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
    }
}

impl CompletionSink {
    fn take(&self) -> Vec<TransferCompletion<Tag>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Maximum number of concurrent operations that copy or scrub.
const BACKGROUND_MAX: usize = 8;
/// Interval between maintenance steps while work is pending.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(10);
/// Time that a late operation has until its sessions are closed.
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// A client's address space.
pub struct Engine {
    config: ClientConfig,
    poller: Poller<CompletionSink>,
    completions: CompletionSink,
    nodes: Vec<MemoryNodeClient<CompletionSink>>,
    extents: Vec<Extent>,
    spill: Option<SpillFile>,
    checksums: PageChecksums,
    /// Seed of the page checksums.
    seed: u64,
    /// Recovery file for a successor process; `None` if the address space cannot be resumed.
    recovery_file: Option<RecoveryFile>,
    /// Replication state of the volume metadata; `None` if the address space is not a volume.
    metadata: Option<MetadataReplication>,
    redo: RedoLog,
    /// Number of operations that replay pages.
    replaying: usize,
    /// `true` if the placement has changed and was not stored yet.
    placement_dirty: bool,
    /// Uncertain pages, of which a write failed: checksums of their possible contents besides the recorded one.
    uncertain_pages: BTreeMap<u64, Vec<u64>>,
    operations: Vec<Option<Operation>>,
    unused: Vec<u32>,
    runs: Runs,
    buffers: Buffers,
    /// Operations to be continued.
    ready: VecDeque<u32>,
    /// Pages held by an operation or a run, each with the operations that wait for it.
    locks: HashMap<u64, VecDeque<u32>>,
    requests: Requests,
    /// I/O requests that completed immediately; handled in the next step.
    finished_io: Vec<(PageTag, Result<Bytes, ()>)>,
    /// Number of I/O requests in flight, by replica.
    in_flight: BTreeMap<u32, u32>,
    /// Dropped replicas. Their slabs are returned when no I/O with them is in flight.
    releasing: Vec<Replica>,
    background: usize,
    last_serial: u32,
    last_slab: u64,
    rng: SplitMix64,
    next_maintenance_at: Nanos,
    counts: Counts,
    periodic_scrub: PeriodicScrub,
    reports: RedundancyReports,
}

impl Engine {
    /// Creates an address space of zeros. Its nodes are not connected yet: see [`Engine::next_call`].
    ///
    /// # Errors
    /// Returns an error if a number is out of range, or if the device or the operating system lacks resources.
    pub fn new(nic: &Nic, config: ClientConfig) -> Result<Self, OpenError> {
        config.check()?;
        let seed = u64::from_le_bytes(nic.entropy().bytes()?);
        let mut rng = SplitMix64::new(seed);
        // Ended sessions may still exist when others are opened.
        let depth = config.connections * usize::try_from(io::SEND_DEPTH).unwrap_or(0);
        let completions = (4 * depth * config.max_nodes()) as u32;
        let poller = Poller::new(nic, PollerConfig { completions, ..PollerConfig::default() })?;
        let extents = config.size_bytes.div_ceil(config.slab_bytes);
        let spill = config.spill.as_deref().map(SpillFile::create).transpose()?;
        let nodes =
            config.nodes.iter().map(|node| MemoryNodeClient::new(node.clone(), rng.next_u64())).collect();
        let seed = rng.next_u64();
        Ok(Self {
            poller,
            completions: CompletionSink::default(),
            nodes,
            extents: (0..extents).map(|_| Extent::default()).collect(),
            spill,
            checksums: PageChecksums::new(seed),
            seed,
            recovery_file: None,
            metadata: None,
            redo: RedoLog::default(),
            replaying: 0,
            placement_dirty: false,
            uncertain_pages: BTreeMap::new(),
            operations: Vec::new(),
            unused: Vec::new(),
            runs: Runs::default(),
            buffers: Buffers::default(),
            ready: VecDeque::new(),
            locks: HashMap::new(),
            requests: Requests::new(),
            finished_io: Vec::new(),
            in_flight: BTreeMap::new(),
            releasing: Vec::new(),
            background: 0,
            last_serial: 0,
            // The numbers of slabs are independent of those of other clients.
            last_slab: 0,
            rng,
            next_maintenance_at: Nanos(0),
            counts: Counts::default(),
            periodic_scrub: PeriodicScrub::default(),
            reports: RedundancyReports::default(),
            config,
        })
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns a completed request.
    pub fn next_completed(&mut self) -> Option<CompletedRequest> {
        self.save_placement();
        if self.is_fenced() {
            return self
                .requests
                .next_completed()
                .map(|completed| CompletedRequest { result: Err(IoError::Fenced), ..completed });
        }
        self.is_placement_committed().then(|| self.requests.next_completed())?
    }

    /// Returns the cache that provides the buffers of reads and accepts them back.
    pub(in crate::client) const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Returns the number of requests in progress.
    pub fn pending(&self) -> usize {
        self.requests.pending()
    }

    /// Returns the status of the address space.
    pub fn status(&self) -> SpaceStatus {
        let node_replicas = |node| {
            let replicas = self.extents.iter().flat_map(|extent| &extent.replicas);
            replicas.filter(|replica| replica.node() == Some(node)).count()
        };
        let used = || self.extents.iter().filter(|extent| extent.is_touched);
        let redundancy = self.redundancy();
        SpaceStatus {
            nodes: self
                .nodes
                .iter()
                .enumerate()
                .map(|(at, client)| client.status(node_replicas(at)))
                .collect(),
            extents: redundancy.slabs as usize,
            // A replica counts when the next client would find it.
            degraded: (redundancy.degraded as usize).max(usize::from(!self.is_placement_committed())),
            copying: redundancy.copying as usize,
            lost: redundancy.lost as usize,
            spilled: used()
                .filter(|extent| extent.replicas.iter().any(|replica| replica.node().is_none()))
                .count(),
            table_bytes: self.extents.iter().map(|extent| extent.pages.table_bytes()).sum(),
            counts: self.counts,
        }
    }

    /// Returns the extent of a page, and the index of the page in it.
    const fn locate(&self, page: u64) -> (usize, usize) {
        let pages = self.pages_per_extent();
        ((page / pages) as usize, (page % pages) as usize)
    }

    const fn pages_per_extent(&self) -> u64 {
        self.config.slab_bytes / PAGE_BYTES as u64
    }

    /// Continues the operations that wait for a replica of an extent.
    fn wake(&mut self, extent: usize) {
        self.ready.extend(self.extents[extent].waiting.drain(..));
    }

    fn step_ready(&mut self, now: Nanos) -> bool {
        let any = !self.ready.is_empty();
        // Operations that become ready during this loop follow after the completed I/O.
        for _ in 0..self.ready.len() {
            if let Some(id) = self.ready.pop_front() {
                self.step(id, now);
            }
        }
        any
    }
}

impl Endpoint for Engine {
    fn progress(&mut self, now: Nanos) -> Progress {
        let polled = self.poller.progress(now);
        self.write_placement(now);
        let mut any = self.step_ready(now);
        for completion in self.completions.take() {
            any = true;
            self.on_io_completed(completion, now);
        }
        for (tag, result) in std::mem::take(&mut self.finished_io) {
            any = true;
            self.on_page_io(tag, result, now);
        }
        if now >= self.next_maintenance_at {
            any |= self.run_maintenance(now);
        }
        any |= self.start_deferred_runs(now);
        if any
            || polled == Progress::Again
            || self.is_placement_due()
            || !self.ready.is_empty()
            || !self.finished_io.is_empty()
        {
            Progress::Again
        } else {
            self.idle()
        }
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.poller.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        self.poller.wait_set(set);
    }
}

impl Engine {
    fn idle(&self) -> Progress {
        let nodes = self.nodes.iter().filter_map(MemoryNodeClient::due).min();
        Progress::Idle {
            until: Nanos::earlier(
                nodes.map(|due| due.max(self.next_maintenance_at)),
                self.next_maintenance(),
            ),
        }
    }
}
