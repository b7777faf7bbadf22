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
mod operation;
mod redundancy;
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
use farcall_verbs::{Endpoint, Nanos, Next, WaitSet};

use super::PAGE_BYTES;
use super::buffers::Buffers;
use super::config::{ClientConfig, Counts, Ended, IoError, OpenError, SpaceStatus};
use super::extent::{Extent, Replica};
use super::node_client::Donor;
use super::pages::Sums;
use super::recovery_file::Keep;
use super::spill::SpillFile;
use joining_node::CopyTag;
use metadata::Noting;
use operation::Operation;
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
    Note {
        write: u32,
        node: usize,
    },
    /// A chunk of metadata, read from a member or written to the joining node.
    Copy(usize, CopyTag),
}

/// The operation and the replica of an I/O request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTag {
    operation: u32,
    replica: u32,
}

/// Queue of completed I/O requests, until the engine takes them.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<TransferCompletion<Tag>>>>);

impl Handler for Told {
    type Context = Tag;

    fn on_completion(&self, completion: TransferCompletion<Tag>) {
        // The vector is consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
    }
}

impl Told {
    fn take(&self) -> Vec<TransferCompletion<Tag>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Maximum number of concurrent operations that copy or scrub.
const BACKGROUND_MAX: usize = 8;
/// Interval between maintenance steps while work is pending.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// A client's address space.
pub struct Engine {
    config: ClientConfig,
    poller: Poller<Told>,
    told: Told,
    donors: Vec<Donor<Told>>,
    extents: Vec<Extent>,
    spill: Option<SpillFile>,
    sums: Sums,
    /// Seed of the page checksums.
    seed: u64,
    /// Recovery file for a successor process; `None` if the address space cannot be resumed.
    keep: Option<Keep>,
    /// Replication state of the volume metadata; `None` if the address space is not a volume.
    noting: Option<Noting>,
    /// `true` if the placement has changed and was not stored yet.
    is_placement_new: bool,
    /// Uncertain pages, of which a write failed: checksums of their possible contents besides the recorded one.
    unsure: BTreeMap<u64, Vec<u64>>,
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
    later: Vec<(PageTag, Result<Bytes, ()>)>,
    /// Number of I/O requests in flight, by replica.
    flying: BTreeMap<u32, u32>,
    /// Dropped replicas. Their slabs are returned when no I/O with them is in flight.
    leaving: Vec<Replica>,
    background: usize,
    last_serial: u32,
    last_slab: u64,
    rng: SplitMix64,
    look_at: Nanos,
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
        let seed = u64::from_le_bytes(nic.entropy.bytes()?);
        let mut rng = SplitMix64::new(seed);
        // Ended sessions may still exist when others are opened.
        let depth = config.connections * usize::try_from(io::SEND_DEPTH).unwrap_or(0);
        let completions = (4 * depth * config.node_room()) as u32;
        let poller = Poller::new(nic, PollerConfig { completions, ..PollerConfig::default() })?;
        let extents = config.size_bytes.div_ceil(config.slab_bytes);
        let spill = config.spill.as_deref().map(SpillFile::create).transpose()?;
        let donors = config.nodes.iter().map(|node| Donor::new(node.clone(), rng.next_u64())).collect();
        let seed = rng.next_u64();
        Ok(Self {
            poller,
            told: Told::default(),
            donors,
            extents: (0..extents).map(|_| Extent::default()).collect(),
            spill,
            sums: Sums::new(seed),
            seed,
            keep: None,
            noting: None,
            is_placement_new: false,
            unsure: BTreeMap::new(),
            operations: Vec::new(),
            unused: Vec::new(),
            runs: Runs::default(),
            buffers: Buffers::default(),
            ready: VecDeque::new(),
            locks: HashMap::new(),
            requests: Requests::new(),
            later: Vec::new(),
            flying: BTreeMap::new(),
            leaving: Vec::new(),
            background: 0,
            last_serial: 0,
            // The numbers of slabs are independent of those of other clients.
            last_slab: 0,
            rng,
            look_at: Nanos(0),
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
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.keep_placement();
        if self.is_fenced() {
            return self.requests.next_ended().map(|ended| Ended { result: Err(IoError::Fenced), ..ended });
        }
        self.is_placement_noted().then(|| self.requests.next_ended())?
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
        let on = |donor| {
            let replicas = self.extents.iter().flat_map(|extent| &extent.replicas);
            replicas.filter(|replica| replica.donor() == Some(donor)).count()
        };
        let used = || self.extents.iter().filter(|extent| extent.is_touched);
        let redundancy = self.redundancy();
        SpaceStatus {
            nodes: self.donors.iter().enumerate().map(|(at, donor)| donor.status(on(at))).collect(),
            extents: redundancy.slabs as usize,
            // A replica counts when the next client would find it.
            degraded: (redundancy.degraded as usize).max(usize::from(!self.is_placement_noted())),
            copying: redundancy.copying as usize,
            lost: redundancy.lost as usize,
            spilled: used()
                .filter(|extent| extent.replicas.iter().any(|replica| replica.donor().is_none()))
                .count(),
            table_bytes: self.extents.iter().map(|extent| extent.pages.table_bytes()).sum(),
            counts: self.counts,
        }
    }

    /// Returns the extent of a page, and the index of the page in it.
    const fn place(&self, page: u64) -> (usize, usize) {
        let pages = self.pages_an_extent();
        ((page / pages) as usize, (page % pages) as usize)
    }

    const fn pages_an_extent(&self) -> u64 {
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
    fn progress(&mut self, now: Nanos) -> Next {
        let polled = self.poller.progress(now);
        self.note_placement(now);
        let mut any = self.step_ready(now);
        for done in self.told.take() {
            any = true;
            self.io_ended(done, now);
        }
        for (tag, result) in std::mem::take(&mut self.later) {
            any = true;
            self.step_with(tag, result, now);
        }
        if now >= self.look_at {
            any |= self.look(now);
        }
        if any
            || polled == Next::Again
            || self.is_placement_due()
            || !self.ready.is_empty()
            || !self.later.is_empty()
        {
            Next::Again
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
    fn idle(&self) -> Next {
        let donors = self.donors.iter().filter_map(Donor::due).min();
        Next::Idle { until: Nanos::earlier(donors.map(|due| due.max(self.look_at)), self.look_due()) }
    }
}
