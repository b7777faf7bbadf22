//! The merge queue: requests in, work requests out, in an order that nobody can tell from one after another.

use std::collections::VecDeque;

use super::coverage::Coverage;
use super::merge::{Candidate, Group, group};
use super::{Combining, Direction, Memory, Request, Work, WorkLimits};
use crate::Admission;
use crate::pieces::Pieces;
use crate::window::counted;

/// What a merge queue may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How requests are put together.
    pub combining: Combining,
    /// Work requests behind one doorbell (MAX_CHAINING_SIZE).
    pub chain: usize,
    /// Requests that are looked through for adjacent ones.
    pub look_ahead: usize,
    /// What one work request can hold.
    pub work: WorkLimits,
}

/// What is posted together.
#[derive(Clone, Debug, Default)]
pub struct Doorbell {
    /// In the order to post them.
    pub work: Vec<Work>,
    /// Their requests.
    pub members: Vec<Request>,
}

/// What went through a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests to read, taken in.
    pub reads: u64,
    /// Requests to write, taken in.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// READs posted.
    pub read_work: u64,
    /// WRITEs posted.
    pub write_work: u64,
    /// Requests that went with another one's work request.
    pub merged: u64,
    /// Work requests that went behind another one's doorbell.
    pub chained: u64,
    /// Doorbells.
    pub doorbells: u64,
    /// How often the window held something back.
    pub window_stalls: u64,
    /// How often the pool held something back.
    pub pool_stalls: u64,
    /// Requests that waited for one that they overlap.
    pub overlapping: u64,
}

struct Held {
    request: Request,
    has_waited: bool,
}

/// The merge queue. Requests wait here in the order in which they came; it says which of them can be posted now, as
/// which work requests. It does no I/O: its owner posts what it says and tells it what ended.
///
/// **Order.** A request is held back while one that came before it, and has a byte in common with it, has not ended,
/// unless both read. So every byte is read and written in the order in which requests came, whatever devices do with
/// work requests that are under way together: over several queue pairs, and over one, where a WRITE may overtake the
/// READ before it (IBA, table 79). Requests that have no byte in common pass one another.
pub struct MergeQueue {
    limits: Limits,
    admission: Box<dyn Admission>,
    pool: Pieces,
    held: VecDeque<Held>,
    in_flight: Coverage,
    in_flight_bytes: u64,
    in_flight_work: usize,
    /// Bytes of the work request that admission held back, if nothing has ended since.
    held_back: Option<u64>,
    counts: Counts,
    // Kept for their memory.
    ahead: Coverage,
    candidates: Vec<Candidate>,
    groups: Vec<Group>,
    is_taken: Vec<bool>,
}

impl MergeQueue {
    /// An empty queue over a pool of `pool_bytes`.
    pub fn new(mut limits: Limits, admission: Box<dyn Admission>, pool_bytes: usize) -> Self {
        let pool = Pieces::new(pool_bytes);
        limits.chain = if limits.combining.chains() { limits.chain.max(1) } else { 1 };
        limits.work.pool_bytes = limits.work.pool_bytes.min(pool.len_bytes() as u64);
        Self {
            limits,
            admission,
            pool,
            held: VecDeque::new(),
            in_flight: Coverage::default(),
            in_flight_bytes: 0,
            in_flight_work: 0,
            held_back: None,
            counts: Counts::default(),
            ahead: Coverage::default(),
            candidates: Vec::new(),
            groups: Vec::new(),
            is_taken: Vec::new(),
        }
    }

    /// Takes a request in, after all before it.
    ///
    /// # Panics
    /// If it is to be copied, and longer than the pool: our own error; nothing would ever post it.
    pub fn push(&mut self, request: Request) {
        let fits = request.memory != Memory::Pool || request.span.len_bytes() <= self.pool.len_bytes() as u64;
        assert!(fits, "{request:?} is longer than the pool of {} bytes", self.pool.len_bytes());
        match request.direction {
            Direction::Read => self.counts.reads += 1,
            Direction::Write => self.counts.writes += 1,
        }
        self.counts.bytes += request.span.len_bytes();
        self.held.push_back(Held { request, has_waited: false });
    }

    /// What to post now, as one doorbell of at most `room` work requests; all of it counts as under way from now on.
    /// False if there is nothing, or nothing that may be posted before something ends.
    pub fn next(&mut self, room: usize, doorbell: &mut Doorbell) -> bool {
        doorbell.work.clear();
        doorbell.members.clear();
        let most = room.min(self.limits.chain);
        if most == 0 || self.held.is_empty() || self.is_still_held_back() {
            return false;
        }
        let depth = self.find_candidates(most);
        group(self.limits.combining, &self.limits.work, &mut self.candidates, &mut self.groups);
        self.admit(most, doorbell);
        self.forget_taken(depth);
        self.count(doorbell);
        !doorbell.work.is_empty()
    }

    /// Whether admission still holds back what it held back last. It is asked before anything is looked through: while
    /// it lets nothing pass, requests come one by one, and each would have all that wait looked through again.
    fn is_still_held_back(&mut self) -> bool {
        self.held_back = self.held_back.filter(|bytes| !self.admission.admits(self.in_flight_bytes, *bytes));
        self.counts.window_stalls += u64::from(self.held_back.is_some());
        self.held_back.is_some()
    }

    /// Looks for requests that overlap nothing before them. Returns how many were looked at.
    fn find_candidates(&mut self, most: usize) -> usize {
        self.ahead.clear();
        self.candidates.clear();
        let most = if self.limits.combining.merges() { self.limits.look_ahead.max(most) } else { most };
        let depth = most.min(self.held.len());
        for (place, held) in self.held.iter_mut().take(depth).enumerate() {
            let Request { direction, span, .. } = held.request;
            if self.in_flight.conflicts(direction, &span) || self.ahead.conflicts(direction, &span) {
                self.counts.overlapping += u64::from(!held.has_waited);
                held.has_waited = true;
            } else {
                self.candidates.push(Candidate { place, request: held.request });
            }
            if depth > 1 {
                self.ahead.add(direction, span);
            }
        }
        self.is_taken.clear();
        self.is_taken.resize(depth, false);
        depth
    }

    /// Puts groups, the oldest first, into the doorbell, until one must wait: nothing passes it then, or long ones
    /// would wait for ever.
    fn admit(&mut self, most: usize, doorbell: &mut Doorbell) {
        for group in self.groups.iter().take(most) {
            if group.is_alone && !doorbell.work.is_empty() {
                break;
            }
            let bytes = counted(group.span.len_bytes());
            if self.in_flight_work > 0 && !self.admission.admits(self.in_flight_bytes, bytes) {
                self.counts.window_stalls += 1;
                self.held_back = Some(bytes);
                break;
            }
            let Some(piece) = self.pool.take(group.pool_bytes as usize) else {
                self.counts.pool_stalls += 1;
                break;
            };
            self.in_flight.add(group.direction, group.span);
            self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes);
            self.in_flight_work += 1;
            self.admission.posted(bytes);
            let first = doorbell.members.len();
            for candidate in &self.candidates[group.candidates.clone()] {
                self.is_taken[candidate.place] = true;
                doorbell.members.push(candidate.request);
            }
            doorbell.work.push(Work {
                direction: group.direction,
                span: group.span,
                members: first..doorbell.members.len(),
                piece,
            });
            if group.is_alone {
                break;
            }
        }
    }

    /// Removes what was taken from the first `depth` that wait; the others keep their order.
    fn forget_taken(&mut self, depth: usize) {
        let mut to = depth;
        for from in (0..depth).rev() {
            if !self.is_taken[from] {
                to -= 1;
                self.held.swap(from, to);
            }
        }
        self.held.drain(..to);
    }

    fn count(&mut self, doorbell: &Doorbell) {
        let (work, counts) = (doorbell.work.len() as u64, &mut self.counts);
        let reads = doorbell.work.iter().filter(|work| work.direction == Direction::Read).count() as u64;
        counts.read_work += reads;
        counts.write_work += work - reads;
        counts.merged += doorbell.members.len() as u64 - work;
        counts.chained += work.saturating_sub(1);
        counts.doorbells += u64::from(work > 0);
    }

    /// A work request has ended, well or not, or was not posted after all: nothing of it is under way any more, and its
    /// part of the pool is free.
    pub fn ended(&mut self, work: &Work) {
        let bytes = counted(work.span.len_bytes());
        self.held_back = None;
        self.in_flight.remove(work.direction, work.span);
        self.in_flight_bytes -= bytes;
        self.in_flight_work -= 1;
        self.pool.give_back(work.piece);
        self.admission.ended(bytes);
    }

    /// Gives back, in their order, the requests that are not under way.
    pub fn take_held(&mut self) -> impl Iterator<Item = Request> {
        self.held.drain(..).map(|held| held.request)
    }

    /// How many requests wait.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// How many work requests are under way.
    pub const fn in_flight(&self) -> usize {
        self.in_flight_work
    }

    /// How many bytes are under way, as admission counts them.
    pub const fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// What went through so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod counts_of_the_paper;
#[cfg(test)]
mod one_after_another;
