//! The pager: one thread that owns a region's pages. It answers faults, takes pages out, and stores them.
//!
//! A page is in one of five states, which nobody else changes:
//!
//! * *absent*: its bytes are at memory nodes, or it was never written;
//! * *fetching*: they are on their way;
//! * *resident*: it is in the region, and threads read and write it without our knowing;
//! * *staged*: it was taken out of the region, and is at a place of [`Staging`];
//! * *poisoned*: it cannot be had.
//!
//! A resident page is taken out by UFFDIO_MOVE, in one step: a thread that writes to it has done so before, or waits.
//! Only then the pager looks whether its bytes are others than those that are stored, by their checksum. So no write is
//! lost, and none costs a fault. Write protection that the kernel resolves by itself (WP_ASYNC) could say the same only
//! before the page is taken out: what is written between the two would be lost.

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
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos, Next, WaitSet};

use crate::order::Order;
use crate::paged_memory::PagedMemory;
use crate::staging::Staging;
use crate::status::{FaultTimes, RegionCounts, RegionStatus};
use crate::streams::Streams;
use fault::Waiting;
use fetch::Fetch;
pub(crate) use save::{QUEUED_MAX, Saved, SavedQueue, Saving};

/// What could not be stored is tried again after so long.
const STORE_AGAIN: Duration = Duration::from_millis(20);

/// States of pages. Those of a large region that were never touched cost no memory: they are zeros.
type State = u8;
const ABSENT: State = 0;
const FETCHING: State = 1;
const RESIDENT: State = 2;
const STAGED: State = 3;
const POISONED: State = 4;

/// What the pager is told.
pub(crate) enum Message {
    WillNeed(Range<u32>),
    DontNeed(Range<u32>),
    Status(mpsc::SyncSender<RegionStatus>),
    /// Save all pages as they are now.
    Save(Saving),
    /// Some of what was saved was taken.
    Taken,
    Close,
}

/// What a request to the memory nodes was for: the low bits of its token; above them the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Fetch,
    Store,
    Save,
}

/// Pages that there may be.
pub(crate) struct Limits {
    /// In local memory, taken out ones included.
    pub resident: usize,
    /// Read ahead of a sequence of faults.
    pub ahead: u32,
    /// How long a fault waits for room, while nothing can be stored.
    pub patience: Duration,
}

impl Limits {
    /// Places for pages that were taken out.
    pub fn staging(&self) -> u32 {
        (self.resident / 8).clamp(8, 4_096) as u32
    }

    /// Pages that there is room for without taking any out, where that can be.
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
    order: Order,
    staging: Staging,
    /// By their first page. No two of them have a page in common.
    fetches: BTreeMap<u32, Fetch>,
    fetching: usize,
    /// Writes that are under way, of each page.
    stores: HashMap<u32, u32>,
    /// Pages that are to be stored, and are not being.
    unsent: VecDeque<u32>,
    store_again_at: Nanos,
    /// Since when nothing could be stored.
    failing_since: Option<Nanos>,
    waiting: VecDeque<Waiting>,
    wanted: VecDeque<Range<u32>>,
    unwanted: VecDeque<Range<u32>>,
    /// Pages that were taken out since they are not needed, and leave as soon as they are stored.
    leaving: HashSet<u32>,
    streams: Streams,
    saving: Option<Saving>,
    counts: RegionCounts,
    fault_times: FaultTimes,
    is_closing: bool,
    is_broken: bool,
}

impl Pager {
    /// The paged memory has one place more than there are for pages that were taken out: the first.
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
            order: Order::default(),
            staging: Staging::new(1, limits.staging()),
            fetches: BTreeMap::new(),
            fetching: 0,
            stores: HashMap::new(),
            unsent: VecDeque::new(),
            store_again_at: Nanos(0),
            failing_since: None,
            waiting: VecDeque::new(),
            wanted: VecDeque::new(),
            unwanted: VecDeque::new(),
            leaving: HashSet::new(),
            streams: Streams::new(limits.ahead),
            saving: None,
            counts: RegionCounts::default(),
            fault_times: FaultTimes::default(),
            is_closing: false,
            is_broken: false,
            limits,
        }
    }

    /// Whether it has come to its end, well or not.
    pub const fn is_over(&self) -> bool {
        self.memory.is_closed() || self.is_broken
    }

    fn state(&self, page: u32) -> State {
        self.states[page as usize]
    }

    fn set(&mut self, page: u32, state: State) {
        self.states[page as usize] = state;
    }

    /// Pages that take local memory, or will.
    fn used(&self) -> usize {
        self.order.len() + self.staging.len() + self.fetching
    }

    fn take(&mut self, message: Message, now: Nanos) {
        match message {
            Message::WillNeed(range) => self.wanted.push_back(range),
            Message::DontNeed(range) => self.unwanted.push_back(range),
            // Who asked may have gone.
            Message::Status(to) => drop(to.send(self.status())),
            Message::Save(saving) => self.begin_saving(saving),
            Message::Taken => {}
            Message::Close => {
                self.is_closing = true;
                self.saving = None;
                self.memory.close(now);
            }
        }
    }

    fn status(&self) -> RegionStatus {
        let memory = self.memory.status();
        let queue = 4 * (self.order.len() + self.staging.len());
        RegionStatus {
            resident_bytes: (self.used() * PAGE_BYTES) as u64,
            resident_limit_bytes: (self.limits.resident * PAGE_BYTES) as u64,
            table_bytes: (self.states.len() + queue + memory.table_bytes) as u64,
            counts: self.counts,
            fault_times: self.fault_times.clone(),
            memory,
        }
    }

    /// Asks the memory nodes. There is room: it was looked for.
    fn submit(&mut self, purpose: Purpose, first: u32, work: Work) {
        let token = u64::from(first) << 2 | purpose as u64;
        let offset = u64::from(first) * PAGE_BYTES as u64;
        let now = self.clock.now();
        let taken = self.memory.submit(Request { token, offset, work }, now);
        debug_assert!(taken.is_ok(), "{taken:?}");
        // A request that is not taken is one that never ends: a fault that waits for ever.
        self.is_broken |= taken.is_err();
    }

    /// What the memory nodes have done.
    fn take_ended(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(ended) = self.memory.next_ended() {
            any = true;
            let first = (ended.token >> 2) as u32;
            match ended.token & 3 {
                of if of == Purpose::Fetch as u64 => self.fetched(first, ended.result),
                of if of == Purpose::Store as u64 => self.stored(first, ended.result.err(), now),
                _ => self.read_to_save(first, ended.result),
            }
        }
        any
    }

    /// Reads faults, and answers those that can be answered.
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
            self.answer(fault);
        }
        new > 0 || self.waiting.len() < had
    }
}

impl Endpoint for Pager {
    fn progress(&mut self, now: Nanos) -> Next {
        let mut any = false;
        while let Some(message) = self.inbox.pop() {
            any = true;
            self.take(message, now);
        }
        if self.is_closing {
            let next = self.memory.progress(now);
            // Whom they were for is gone.
            while self.memory.next_ended().is_some() {}
            return next;
        }
        let has_faults = self.read_faults();
        let next = self.memory.progress(now);
        any |= has_faults | self.take_ended(now);
        if !any {
            any |= self.step_background(now);
        }
        if any {
            return Next::Again;
        }
        let is_late = !self.waiting.is_empty() || !self.unsent.is_empty();
        let again = is_late.then(|| self.store_again_at.max(now + Duration::from_millis(1)));
        next.merge(Next::Idle { until: again })
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
    /// What nobody waits for, a little of it.
    fn step_background(&mut self, now: Nanos) -> bool {
        self.send_stores(now) | self.step_hints() | self.step_saving() | self.keep_headroom()
    }
}
