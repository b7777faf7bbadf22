//! The merge queue: combines requests into work requests so that the result equals sequential execution.

use std::collections::VecDeque;

use super::in_flight_ranges::InFlightRanges;
use super::merge::{Candidate, Group, group};
use super::{Combining, Direction, Memory, Request, Work, WorkLimits};
use crate::Admission;
use crate::buffer_pool::BufferPool;
use crate::window::counted;

/// Limits of a merge queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How requests are combined.
    pub combining: Combining,
    /// Maximum number of work requests per doorbell (MAX_CHAINING_SIZE).
    pub chain: usize,
    /// Number of waiting requests among which adjacent ones are searched for.
    pub look_ahead: usize,
    /// Limits of one work request.
    pub work: WorkLimits,
}

/// Work requests that are posted with one doorbell.
#[derive(Clone, Debug, Default)]
pub struct Doorbell {
    /// Work requests in posting order.
    pub work: Vec<Work>,
    /// Requests of all work requests.
    pub members: Vec<Request>,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted requests to read.
    pub reads: u64,
    /// Accepted requests to write.
    pub writes: u64,
    /// Total bytes of these requests.
    pub bytes: u64,
    /// READs posted.
    pub read_work: u64,
    /// WRITEs posted.
    pub write_work: u64,
    /// Requests merged into the work request of another request.
    pub merged: u64,
    /// Work requests posted with the doorbell of another work request.
    pub chained: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Number of times that admission control held back a work request.
    pub window_stalls: u64,
    /// Number of times that a work request had to wait for space in the pool.
    pub pool_stalls: u64,
    /// Requests that waited for a request that they overlap.
    pub overlapping: u64,
}

/// A waiting request.
struct WaitingRequest {
    request: Request,
    /// Whether it is already counted in [`Counts::overlapping`].
    has_waited: bool,
}

/// The merge queue. Requests wait here in the order of submission, and it decides which of them can be posted now, as
/// which work requests. It does no I/O: the caller posts the work requests, and reports those that have ended.
///
/// **Order.** A request is held back while an earlier request that overlaps it has not ended, unless both read. Every
/// byte is therefore read and written in the order of submission, however devices order the work requests in flight.
/// This covers several queue pairs, and also a single one, where a WRITE may overtake an earlier READ (IBA, table 79).
/// Requests that do not overlap may overtake each other.
pub struct MergeQueue {
    limits: Limits,
    admission: Box<dyn Admission>,
    pool: BufferPool,
    /// Waiting requests in the order of submission.
    waiting: VecDeque<WaitingRequest>,
    /// Ranges of the work requests in flight.
    in_flight: InFlightRanges,
    /// Bytes in flight, as admission control counts them.
    in_flight_bytes: u64,
    /// Number of work requests in flight.
    in_flight_work: usize,
    /// Counted bytes of the work request that admission control held back, if no work request has ended since.
    stalled_bytes: Option<u64>,
    counts: Counts,
    // The following are scratch buffers of `next`, which are reused to avoid allocations.
    /// Ranges of the waiting requests already examined.
    ahead: InFlightRanges,
    candidates: Vec<Candidate>,
    groups: Vec<Group>,
    /// For each examined request, whether it is part of the doorbell.
    is_posted: Vec<bool>,
}

impl MergeQueue {
    /// Creates an empty queue over a pool of `pool_bytes` bytes.
    pub fn new(mut limits: Limits, admission: Box<dyn Admission>, pool_bytes: usize) -> Self {
        let pool = BufferPool::new(pool_bytes);
        limits.chain = if limits.combining.chains() { limits.chain.max(1) } else { 1 };
        limits.work.pool_bytes = limits.work.pool_bytes.min(pool.len_bytes() as u64);
        Self {
            limits,
            admission,
            pool,
            waiting: VecDeque::new(),
            in_flight: InFlightRanges::default(),
            in_flight_bytes: 0,
            in_flight_work: 0,
            stalled_bytes: None,
            counts: Counts::default(),
            ahead: InFlightRanges::default(),
            candidates: Vec::new(),
            groups: Vec::new(),
            is_posted: Vec::new(),
        }
    }

    /// Appends a request.
    ///
    /// # Panics
    /// If the request is to be copied and is longer than the pool: an error of the caller. It could never be posted.
    pub fn push(&mut self, request: Request) {
        let fits = request.memory != Memory::Pool || request.span.len_bytes() <= self.pool.len_bytes() as u64;
        assert!(fits, "{request:?} is longer than the pool of {} bytes", self.pool.len_bytes());
        match request.direction {
            Direction::Read => self.counts.reads += 1,
            Direction::Write => self.counts.writes += 1,
        }
        self.counts.bytes += request.span.len_bytes();
        self.waiting.push_back(WaitingRequest { request, has_waited: false });
    }

    /// Fills `doorbell` with at most `room` work requests that may be posted now. They count as in flight from now on.
    /// Returns false if no request waits, or none may be posted now.
    pub fn next(&mut self, room: usize, doorbell: &mut Doorbell) -> bool {
        doorbell.work.clear();
        doorbell.members.clear();
        let most = room.min(self.limits.chain);
        if most == 0 || self.waiting.is_empty() || self.is_still_stalled() {
            return false;
        }
        let depth = self.find_candidates(most);
        group(self.limits.combining, &self.limits.work, &mut self.candidates, &mut self.groups);
        self.admit(most, doorbell);
        self.remove_posted(depth);
        self.count(doorbell);
        !doorbell.work.is_empty()
    }

    /// Returns whether admission control still holds back the work request that it held back last. This is checked
    /// before the waiting requests are searched: otherwise each request that arrives while the window is full would
    /// cause another search through all of them.
    fn is_still_stalled(&mut self) -> bool {
        self.stalled_bytes =
            self.stalled_bytes.filter(|bytes| !self.admission.admits(self.in_flight_bytes, *bytes));
        self.counts.window_stalls += u64::from(self.stalled_bytes.is_some());
        self.stalled_bytes.is_some()
    }

    /// Collects the requests that overlap neither a range in flight nor an earlier waiting request (unless both read).
    /// Returns the number of requests examined.
    fn find_candidates(&mut self, most: usize) -> usize {
        self.ahead.clear();
        self.candidates.clear();
        let most = if self.limits.combining.merges() { self.limits.look_ahead.max(most) } else { most };
        let depth = most.min(self.waiting.len());
        for (position, waiting) in self.waiting.iter_mut().take(depth).enumerate() {
            let Request { direction, span, .. } = waiting.request;
            if self.in_flight.conflicts(direction, &span) || self.ahead.conflicts(direction, &span) {
                self.counts.overlapping += u64::from(!waiting.has_waited);
                waiting.has_waited = true;
            } else {
                self.candidates.push(Candidate { position, request: waiting.request });
            }
            if depth > 1 {
                self.ahead.add(direction, span);
            }
        }
        self.is_posted.clear();
        self.is_posted.resize(depth, false);
        depth
    }

    /// Adds groups to the doorbell, the oldest first, until one must wait. No later group overtakes it; otherwise long
    /// ones could wait forever.
    fn admit(&mut self, most: usize, doorbell: &mut Doorbell) {
        for group in self.groups.iter().take(most) {
            if group.is_alone && !doorbell.work.is_empty() {
                break;
            }
            let bytes = counted(group.span.len_bytes());
            if self.in_flight_work > 0 && !self.admission.admits(self.in_flight_bytes, bytes) {
                self.counts.window_stalls += 1;
                self.stalled_bytes = Some(bytes);
                break;
            }
            let Some(pool_slice) = self.pool.allocate(group.pool_bytes as usize) else {
                self.counts.pool_stalls += 1;
                break;
            };
            self.in_flight.add(group.direction, group.span);
            self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes);
            self.in_flight_work += 1;
            self.admission.posted(bytes);
            let first = doorbell.members.len();
            for candidate in &self.candidates[group.candidates.clone()] {
                self.is_posted[candidate.position] = true;
                doorbell.members.push(candidate.request);
            }
            doorbell.work.push(Work {
                direction: group.direction,
                span: group.span,
                members: first..doorbell.members.len(),
                pool_slice,
            });
            if group.is_alone {
                break;
            }
        }
    }

    /// Removes the posted requests from the first `depth` waiting ones; the others retain their order.
    fn remove_posted(&mut self, depth: usize) {
        let mut to = depth;
        for from in (0..depth).rev() {
            if !self.is_posted[from] {
                to -= 1;
                self.waiting.swap(from, to);
            }
        }
        self.waiting.drain(..to);
    }

    /// Updates the counters.
    fn count(&mut self, doorbell: &Doorbell) {
        let (work, counts) = (doorbell.work.len() as u64, &mut self.counts);
        let reads = doorbell.work.iter().filter(|work| work.direction == Direction::Read).count() as u64;
        counts.read_work += reads;
        counts.write_work += work - reads;
        counts.merged += doorbell.members.len() as u64 - work;
        counts.chained += work.saturating_sub(1);
        counts.doorbells += u64::from(work > 0);
    }

    /// Called when a work request has ended, successfully or not, or could not be posted. It is no longer in flight,
    /// and its range of the pool is free.
    pub fn on_work_ended(&mut self, work: &Work) {
        let bytes = counted(work.span.len_bytes());
        self.stalled_bytes = None;
        self.in_flight.remove(work.direction, work.span);
        self.in_flight_bytes -= bytes;
        self.in_flight_work -= 1;
        self.pool.free_slice(work.pool_slice);
        self.admission.ended(bytes);
    }

    /// Removes the waiting requests and returns them in the order of submission.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = Request> {
        self.waiting.drain(..).map(|waiting| waiting.request)
    }

    /// Returns the number of waiting requests.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of work requests in flight.
    pub const fn in_flight(&self) -> usize {
        self.in_flight_work
    }

    /// Returns the number of bytes in flight, as admission control counts them.
    pub const fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Returns the counters.
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod paper_counts;
#[cfg(test)]
mod sequential_equivalence;
