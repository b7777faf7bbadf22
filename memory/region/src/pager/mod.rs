//! The pager: one thread that owns the pages of a region. It resolves faults, evicts pages, and stores them.
//!
//! A page is in one of five states, which only the pager changes:
//!
//! * *absent*: its bytes are on memory nodes, or it was never written;
//! * *fetching*: a read of its bytes is in flight;
//! * *resident*: it is in the region, and threads read and write it without the pager's knowledge;
//! * *staged*: it was evicted from the region, and is in a slot of [`Staging`];
//! * *poisoned*: it cannot be read.
//!
//! UFFDIO_MOVE evicts a resident page in one step: each write of a thread is executed either before the move or waits
//! for the page. Only then the pager compares the checksum of its bytes with that of the stored page. Hence no write
//! is lost, and no write causes a fault. Asynchronous write protection (WP_ASYNC), which the kernel resolves by
//! itself, can detect changes only before the page is moved; a write between the check and the move would be lost.

mod evict;
mod fault;
mod fetch;
mod hint;
mod save;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use farcall_drive::WakeQueue;
use farcall_memory::{MemoryEndpoint, PAGE_BYTES, Request, Work};
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Progress, WaitSet};

use crate::paged_memory::PagedMemory;
use crate::resident_fifo::ResidentFifo;
use crate::sequential_detector::SequentialDetector;
use crate::staging::Staging;
use crate::status::{FaultTimes, RegionCounts, RegionStatus};
use fault::Waiting;
use fetch::Fetch;
pub(crate) use save::{QUEUED_MAX, Saved, SavedQueue, Snapshot};

/// Delay before a failed store is retried.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(20);

/// State of a page. The array is initialized with zeros (`ABSENT`), so untouched parts of a large region take no
/// memory.
type State = u8;
const ABSENT: State = 0;
const FETCHING: State = 1;
const RESIDENT: State = 2;
const STAGED: State = 3;
const POISONED: State = 4;

/// Message to the pager.
pub(crate) enum Message {
    WillNeed(Range<u32>),
    DontNeed(Range<u32>),
    Status(mpsc::SyncSender<RegionStatus>),
    /// Requests a snapshot of all pages in their present state.
    Save(Snapshot),
    /// The snapshot writer has consumed saved pages.
    Consumed,
    Close,
}

/// Purpose of a request to the memory nodes, encoded in the low bits of its token. The number of its first page is
/// above them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Fetch,
    Store,
    Save,
}

/// Limits of the pager, in pages.
pub(crate) struct Limits {
    /// Maximum number of pages in local memory, including evicted ones in staging slots.
    pub resident: usize,
    /// Maximum number of pages read ahead of a sequence of faults.
    pub ahead: u32,
    /// Maximum time that a fault waits for space while no store succeeds.
    pub patience: Duration,
}

impl Limits {
    /// Returns the number of staging slots.
    pub fn staging(&self) -> u32 {
        (self.resident / 8).clamp(8, 4_096) as u32
    }

    /// Returns the number of pages that should be free for faults without an eviction.
    const fn headroom(&self) -> usize {
        let headroom = self.resident / 16;
        if headroom > 64 { 64 } else { headroom }
    }
}

pub(crate) struct Pager {
    paged: PagedMemory,
    memory: MemoryEndpoint,
    inbox: WakeQueue<Message>,
    clock: MonotonicClock,
    limits: Limits,
    states: Vec<State>,
    fifo: ResidentFifo,
    staging: Staging,
    /// Fetches in flight by their first page. Invariant: they do not overlap.
    fetches: BTreeMap<u32, Fetch>,
    fetching: usize,
    /// Number of stores in flight by page.
    stores: HashMap<u32, u32>,
    /// Pages that must be stored and whose store is not in flight.
    unsent: VecDeque<u32>,
    retry_stores_at: Nanos,
    /// Time of the first failure since the last successful store.
    failing_since: Option<Nanos>,
    waiting: VecDeque<Waiting>,
    wanted: VecDeque<Range<u32>>,
    unwanted: VecDeque<Range<u32>>,
    /// Pages evicted because they are not needed, whose memory is released as soon as they are stored.
    releasing: HashSet<u32>,
    detector: SequentialDetector,
    snapshot: Option<Snapshot>,
    counts: RegionCounts,
    fault_times: FaultTimes,
    is_closing: bool,
    is_broken: bool,
}

impl Pager {
    /// Creates a pager. `paged` must have one staging slot more than `limits.staging()`: the first one is reserved for
    /// snapshots.
    pub fn new(
        paged: PagedMemory,
        memory: MemoryEndpoint,
        inbox: WakeQueue<Message>,
        clock: MonotonicClock,
        limits: Limits,
    ) -> Self {
        let pages = paged.region().len_bytes() / PAGE_BYTES;
        Self {
            paged,
            memory,
            inbox,
            clock,
            states: vec![ABSENT; pages],
            fifo: ResidentFifo::default(),
            staging: Staging::new(1, limits.staging()),
            fetches: BTreeMap::new(),
            fetching: 0,
            stores: HashMap::new(),
            unsent: VecDeque::new(),
            retry_stores_at: Nanos(0),
            failing_since: None,
            waiting: VecDeque::new(),
            wanted: VecDeque::new(),
            unwanted: VecDeque::new(),
            releasing: HashSet::new(),
            detector: SequentialDetector::new(limits.ahead),
            snapshot: None,
            counts: RegionCounts::default(),
            fault_times: FaultTimes::default(),
            is_closing: false,
            is_broken: false,
            limits,
        }
    }

    /// Returns whether the pager has ended, after `Close` or by a failure.
    pub const fn has_ended(&self) -> bool {
        self.memory.is_closed() || self.is_broken
    }

    fn state(&self, page: u32) -> State {
        self.states[page as usize]
    }

    fn set(&mut self, page: u32, state: State) {
        self.states[page as usize] = state;
    }

    /// Returns the number of pages that take local memory, including those being fetched.
    fn used(&self) -> usize {
        self.fifo.len() + self.staging.len() + self.fetching
    }

    fn handle_message(&mut self, message: Message, now: Nanos) {
        match message {
            Message::WillNeed(range) => self.wanted.push_back(range),
            Message::DontNeed(range) => self.unwanted.push_back(range),
            // The requester may no longer wait.
            Message::Status(to) => drop(to.send(self.status())),
            Message::Save(snapshot) => self.begin_snapshot(snapshot),
            Message::Consumed => {}
            Message::Close => {
                self.is_closing = true;
                self.snapshot = None;
                self.memory.close(now);
            }
        }
    }

    fn status(&self) -> RegionStatus {
        let memory = self.memory.status();
        let queue = 4 * (self.fifo.len() + self.staging.len());
        RegionStatus {
            resident_bytes: (self.used() * PAGE_BYTES) as u64,
            resident_limit_bytes: (self.limits.resident * PAGE_BYTES) as u64,
            table_bytes: (self.states.len() + queue + memory.table_bytes) as u64,
            counts: self.counts,
            fault_times: self.fault_times.clone(),
            memory,
        }
    }

    /// Submits a request to the memory nodes. The caller has checked that there is capacity for it.
    fn submit(&mut self, purpose: Purpose, first: u32, work: Work) {
        let token = u64::from(first) << 2 | purpose as u64;
        let offset = u64::from(first) * PAGE_BYTES as u64;
        let now = self.clock.now();
        let taken = self.memory.submit(Request { token, offset, work }, now);
        debug_assert!(taken.is_ok(), "{taken:?}");
        // A rejected request would never complete, and a fault would wait forever.
        self.is_broken |= taken.is_err();
    }

    /// Handles completed requests. Returns whether there were any.
    fn handle_completed(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(completed) = self.memory.next_completed() {
            any = true;
            let first = (completed.token >> 2) as u32;
            match completed.token & 3 {
                of if of == Purpose::Fetch as u64 => self.fetched(first, completed.result),
                of if of == Purpose::Store as u64 => self.stored(first, completed.result.err(), now),
                _ => self.save_read(first, completed.result),
            }
        }
        any
    }

    /// Reads faults and resolves those that can be resolved. Returns whether there was progress.
    fn read_faults(&mut self) -> bool {
        let mut faults = std::mem::take(&mut self.waiting);
        let had = faults.len();
        let since = self.clock.now();
        let read = self.paged.uffd().faults(|fault| {
            if let Some(page) = self.paged.page_of(fault) {
                let (page, is_protected) = (page as u32, fault.is_protected);
                faults.push_back(Waiting { page, is_protected, since, has_waited: false });
            }
        });
        self.is_broken |= read.is_err();
        let new = faults.len() - had;
        while let Some(fault) = faults.pop_front() {
            self.resolve(fault);
        }
        new > 0 || self.waiting.len() < had
    }
}

impl Endpoint for Pager {
    fn progress(&mut self, now: Nanos) -> Progress {
        let mut any = false;
        while let Some(message) = self.inbox.pop() {
            any = true;
            self.handle_message(message, now);
        }
        if self.is_closing {
            let next = self.memory.progress(now);
            // Their requesters no longer wait.
            while self.memory.next_completed().is_some() {}
            return next;
        }
        let has_faults = self.read_faults();
        let next = self.memory.progress(now);
        any |= has_faults | self.handle_completed(now);
        if !any {
            any |= self.step_background(now);
        }
        if any {
            return Progress::Again;
        }
        let is_late = !self.waiting.is_empty() || !self.unsent.is_empty();
        let again = is_late.then(|| self.retry_stores_at.max(now + Duration::from_millis(1)));
        next.merge(Progress::Idle { until: again })
    }

    fn arm(&mut self) -> farcall_verbs::Result<()> {
        self.inbox.clear_wake();
        self.memory.arm()
    }

    fn wait_set(&self, set: &mut WaitSet) {
        set.insert(self.paged.uffd().fd());
        set.insert(self.inbox.fd());
        self.memory.wait_set(set);
    }
}

impl Pager {
    /// Performs a bounded part of the work that no thread waits for.
    fn step_background(&mut self, now: Nanos) -> bool {
        self.send_stores(now) | self.step_hints() | self.continue_snapshot() | self.maintain_headroom()
    }
}
