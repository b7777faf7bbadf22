//! What whoever has the turn works on: requests that wait, and queue pairs that nobody posts to.

use farcall_stats::Block;

use crate::merging::{Counts, Direction, Doorbell, MergeQueue, Request, Span, Work};
use crate::request::Entry;

/// What threads leave for whoever has the turn.
pub(crate) enum Message<C> {
    /// A request came.
    Asked { direction: Direction, span: Span, entry: Entry<C> },
    /// A work request has ended, or was not posted after all.
    Ended { line: usize, work: Work },
    /// A queue pair is posted to no more: another batch may go there.
    Free(Batch<C>),
    /// The session has ended.
    Look,
}

/// What one thread posts to one queue pair. There is one for each queue pair: whoever has it may post there.
pub(crate) struct Batch<C> {
    pub line: usize,
    pub doorbell: Doorbell,
    /// Those of `doorbell.members`, in their order.
    pub entries: Vec<Entry<C>>,
}

impl<C> Batch<C> {
    pub fn new(line: usize) -> Self {
        Self { line, doorbell: Doorbell::default(), entries: Vec::new() }
    }
}

farcall_stats::counters! {
    /// What went through a session, for `farcall stats`; see [`Counts`].
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

pub(crate) struct Planner<C> {
    queue: MergeQueue,
    /// Requests in the queue, by their numbers there.
    waiting: Vec<Option<Entry<C>>>,
    unused: Vec<u32>,
    /// Of the queue pairs that nobody posts to.
    batches: Vec<Batch<C>>,
    /// Work requests under way, by queue pair.
    in_flight: Vec<u32>,
    /// How many there may be.
    depth: u32,
    counters: Block<Counters>,
}

impl<C> Planner<C> {
    pub fn new(queue: MergeQueue, lines: usize, depth: u32) -> Self {
        Self {
            queue,
            waiting: Vec::new(),
            unused: Vec::new(),
            batches: (0..lines).map(Batch::new).collect(),
            in_flight: vec![0; lines],
            depth,
            counters: Block::new("remio session", 0),
        }
    }

    pub fn accept(&mut self, message: Message<C>) {
        match message {
            Message::Asked { direction, span, entry } => {
                let memory = entry.local.memory();
                let id = self.unused.pop().unwrap_or_else(|| {
                    self.waiting.push(None);
                    self.waiting.len() as u32 - 1
                });
                self.waiting[id as usize] = Some(entry);
                self.queue.push(Request { id, direction, span, memory });
            }
            Message::Ended { line, work } => {
                self.queue.ended(&work);
                self.in_flight[line] -= 1;
            }
            Message::Free(batch) => self.batches.push(batch),
            Message::Look => {}
        }
    }

    /// What to post now, on the queue pair with the least under way.
    pub fn next(&mut self) -> Option<Batch<C>> {
        let at = (0..self.batches.len()).min_by_key(|at| self.in_flight[self.batches[*at].line])?;
        let line = self.batches[at].line;
        let room = (self.depth - self.in_flight[line]) as usize;
        let found = self.queue.next(room, &mut self.batches[at].doorbell);
        self.show();
        if !found {
            return None;
        }
        let mut batch = self.batches.swap_remove(at);
        self.in_flight[line] += batch.doorbell.work.len() as u32;
        for member in &batch.doorbell.members {
            batch.entries.extend(self.waiting[member.id as usize].take());
            self.unused.push(member.id);
        }
        Some(batch)
    }

    /// All that waits: the session is over.
    pub fn take_waiting(&mut self, entries: &mut Vec<Entry<C>>) {
        for request in self.queue.take_held() {
            entries.extend(self.waiting[request.id as usize].take());
            self.unused.push(request.id);
        }
    }

    /// Whether something is under way, so that somebody comes back when it ends.
    pub fn is_under_way(&self) -> bool {
        self.queue.in_flight() > 0
    }

    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    fn show(&self) {
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
