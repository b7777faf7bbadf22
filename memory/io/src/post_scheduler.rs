//! State that only the combiner accesses: waiting requests, and queue pairs to which no thread posts.

use farcall_stats::Block;

use crate::merging::{Counts, Direction, Doorbell, MergeQueue, Request, Span, Work};
use crate::request::Entry;

/// Message to the combiner.
pub(crate) enum Message<C> {
    /// A request was submitted.
    Submitted { direction: Direction, span: Span, entry: Entry<C> },
    /// A work request has ended, or could not be posted.
    WorkEnded { qp_index: usize, work: Work },
    /// A thread has finished posting to a queue pair, which may receive another batch.
    QpFree(Batch<C>),
    /// The session has ended: the combiner must complete the waiting requests.
    Recheck,
}

/// Work that one thread posts to one queue pair. Invariant: there is exactly one batch per queue pair, and only the
/// thread that has it posts there.
pub(crate) struct Batch<C> {
    pub qp_index: usize,
    pub doorbell: Doorbell,
    /// Requests of `doorbell.members`, in the same order.
    pub entries: Vec<Entry<C>>,
}

impl<C> Batch<C> {
    /// Creates the empty batch of a queue pair.
    pub fn new(qp_index: usize) -> Self {
        Self { qp_index, doorbell: Doorbell::default(), entries: Vec::new() }
    }
}

farcall_stats::counters! {
    /// Counters of a session for `farcall stats`; see [`Counts`].
    pub(crate) struct Counters {
        reads,
        writes,
        bytes,
        read_work,
        write_work,
        merged,
        chained,
        doorbells,
        window_stalls,
        pool_stalls,
        overlapping,
        in_flight_bytes,
    }
}

/// Scheduler of the requests of a session.
pub(crate) struct PostScheduler<C> {
    queue: MergeQueue,
    /// Requests in the queue, indexed by their number in the queue.
    waiting: Vec<Option<Entry<C>>>,
    /// Free indices of `waiting`.
    unused: Vec<u32>,
    /// Batches of the queue pairs to which no thread posts.
    batches: Vec<Batch<C>>,
    /// Number of work requests in flight, by queue pair.
    in_flight: Vec<u32>,
    /// Maximum number of work requests in flight per queue pair.
    depth: u32,
    counters: Block<Counters>,
}

impl<C> PostScheduler<C> {
    pub fn new(queue: MergeQueue, qps: usize, depth: u32) -> Self {
        Self {
            queue,
            waiting: Vec::new(),
            unused: Vec::new(),
            batches: (0..qps).map(Batch::new).collect(),
            in_flight: vec![0; qps],
            depth,
            counters: Block::new("remio session", 0),
        }
    }

    /// Handles a message.
    pub fn handle(&mut self, message: Message<C>) {
        match message {
            Message::Submitted { direction, span, entry } => {
                let memory = entry.local.memory();
                let id = self.unused.pop().unwrap_or_else(|| {
                    self.waiting.push(None);
                    self.waiting.len() as u32 - 1
                });
                self.waiting[id as usize] = Some(entry);
                self.queue.push(Request { id, direction, span, memory });
            }
            Message::WorkEnded { qp_index, work } => {
                self.queue.on_work_ended(&work);
                self.in_flight[qp_index] -= 1;
            }
            Message::QpFree(batch) => self.batches.push(batch),
            Message::Recheck => {}
        }
    }

    /// Returns the next batch to post. Among the free queue pairs, it selects the one with the fewest work requests in
    /// flight. Returns `None` if there is no free queue pair, or no request that may be posted now.
    pub fn next_batch(&mut self) -> Option<Batch<C>> {
        let at = (0..self.batches.len()).min_by_key(|at| self.in_flight[self.batches[*at].qp_index])?;
        let qp_index = self.batches[at].qp_index;
        let room = (self.depth - self.in_flight[qp_index]) as usize;
        let found = self.queue.next(room, &mut self.batches[at].doorbell);
        self.publish_counters();
        if !found {
            return None;
        }
        let mut batch = self.batches.swap_remove(at);
        self.in_flight[qp_index] += batch.doorbell.work.len() as u32;
        for member in &batch.doorbell.members {
            batch.entries.extend(self.waiting[member.id as usize].take());
            self.unused.push(member.id);
        }
        Some(batch)
    }

    /// Removes all waiting requests, because the session has ended.
    pub fn take_waiting(&mut self, entries: &mut Vec<Entry<C>>) {
        for request in self.queue.take_waiting() {
            entries.extend(self.waiting[request.id as usize].take());
            self.unused.push(request.id);
        }
    }

    /// Returns whether work requests are in flight, so that the poller plans again when they end.
    pub fn has_work_in_flight(&self) -> bool {
        self.queue.in_flight() > 0
    }

    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// Publishes the counters.
    fn publish_counters(&self) {
        let counts = self.queue.counts();
        let counters = &self.counters;
        counters.reads.set(counts.reads);
        counters.writes.set(counts.writes);
        counters.bytes.set(counts.bytes);
        counters.read_work.set(counts.read_work);
        counters.write_work.set(counts.write_work);
        counters.merged.set(counts.merged);
        counters.chained.set(counts.chained);
        counters.doorbells.set(counts.doorbells);
        counters.window_stalls.set(counts.window_stalls);
        counters.pool_stalls.set(counts.pool_stalls);
        counters.overlapping.set(counts.overlapping);
        counters.in_flight_bytes.set(self.queue.in_flight_bytes());
    }
}
