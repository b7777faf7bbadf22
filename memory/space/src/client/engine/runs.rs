//! Runs: consecutive full pages that one I/O request per replica reads or writes. None of them needs special
//! treatment. If a run fails, each page concerned continues as an operation of its own, which handles every case.
//!
//! A run holds its pages like an operation: later operations wait for them.
//!
//! In a volume, one write to each member first stores the entries of the pages of a run, and one to the node of each
//! replica its pages in the redo log. Then the run is written to all replicas: whichever node exits together with the
//! client, the next client replays the pages from the log of another one.
//!
//! A run is *deferred* while a slab for it is being granted, its placement is being committed, or slots of the redo log
//! are in use: it holds its pages and starts when that is done.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use farcall_io::{Buffer, Direction, Request};
use farcall_verbs::Nanos;

use super::metadata_write::OnCommit;
use super::operation::{Operation, OperationKind};
use super::part::Part;
use super::{Engine, LATE_INTERVAL, Tag};
use crate::client::extent::{Replica, ReplicaLocation};
use crate::client::{PAGE_BYTES, PART_PAGES};

/// Maximum number of pages of a written run. A longer write has several runs: one is posted while the next is copied.
const WRITTEN_PAGES_MAX: u64 = 64;
/// Maximum number of pages of a read run: a complete part of a request, whose bytes need not be copied.
const READ_PAGES_MAX: u64 = PART_PAGES as u64;
/// Divisor of the length of the pool: maximum length of a run, which is copied through the pool.
const SHARE_OF_POOL: usize = 4;
/// Minimum number of pages of a run; fewer pages are operations.
const PAGES_MIN: u64 = 2;

/// Consecutive full pages of a request.
pub(super) struct RunPages {
    pub request: u32,
    pub pages: Range<u64>,
    /// Offset in bytes of the first of them in the request.
    pub of_request: usize,
    pub is_read: bool,
    pub deadline: Nanos,
}

/// The run and the replica of an I/O request.
#[derive(Clone, Copy, Debug)]
pub(in crate::client) struct RunTag {
    run: u32,
    pub replica: u32,
}

/// A run in progress.
struct Run {
    range: RunPages,
    /// Bytes to write; empty for a read.
    bytes: Bytes,
    /// Replicas at the start of the run.
    targets: Vec<u32>,
    in_flight: Vec<u32>,
    /// `true` if part of a written run may have been stored.
    was_posted: bool,
    has_failed: bool,
    /// Number of writes of its intent that are not committed.
    intent_writes_left: u32,
    /// Slots of the redo log with its pages.
    slots: Range<u32>,
    /// Bytes that were read.
    found: Option<Vec<u8>>,
    /// Time at which the sessions of replicas that are still in flight are closed.
    stalled_at: Nanos,
}

/// Whether a run can start.
enum RunStart {
    /// With these replicas.
    Now(Vec<u32>),
    /// When a slab was granted or a placement was committed.
    Later,
    /// Its pages are operations.
    Never,
}

/// Runs in progress, by number.
#[derive(Default)]
pub(super) struct Runs {
    runs: Vec<Option<Run>>,
    unused: Vec<u32>,
    /// Written runs that have not started yet, in the order of submission.
    deferred: Vec<u32>,
}

impl Runs {
    pub const fn is_empty(&self) -> bool {
        self.runs.len() == self.unused.len()
    }

    /// Returns the replicas whose I/O requests are late.
    pub fn stalled(&mut self, now: Nanos) -> Vec<u32> {
        let mut stalled = Vec::new();
        for run in self.runs.iter_mut().flatten().filter(|run| run.stalled_at <= now) {
            run.stalled_at = now + LATE_INTERVAL;
            stalled.extend_from_slice(&run.in_flight);
        }
        stalled
    }

    fn begin(&mut self, run: Run) -> u32 {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        self.runs[id as usize] = Some(run);
        id
    }

    /// Removes a run that has ended.
    fn take(&mut self, id: u32) -> Option<Run> {
        let run = self.runs[id as usize].take();
        self.deferred.retain(|deferred| *deferred != id);
        self.unused.extend(run.as_ref().map(|_| id));
        run
    }
}

impl Engine {
    /// Starts or defers a run with as many of these pages as possible. Returns their number, 0 if there is no run.
    pub(super) fn start_run(&mut self, mut range: RunPages, now: Nanos) -> u64 {
        let first = range.pages.start;
        let (_, at) = self.locate(first);
        if range.pages.end - first < PAGES_MIN {
            return 0;
        }
        let start = self.run_start(first, range.is_read, now);
        if matches!(start, RunStart::Never) {
            return 0;
        }
        let pool_pages = (self.config.pool_bytes / SHARE_OF_POOL / PAGE_BYTES) as u64;
        let most = if range.is_read { READ_PAGES_MAX } else { WRITTEN_PAGES_MAX };
        let room = (self.pages_per_extent() - at as u64).min(most).min(pool_pages);
        range.pages.end = range.pages.end.min(first + room);
        let plain =
            range.pages.clone().take_while(|page| self.can_join_run(*page, range.is_read)).count() as u64;
        if plain < PAGES_MIN {
            return 0;
        }
        range.pages.end = first + plain;
        range.pages.clone().for_each(|page| drop(self.locks.insert(page, VecDeque::new())));
        let len_bytes = plain as usize * PAGE_BYTES;
        let bytes = match range.is_read {
            true => Bytes::new(),
            false => self.requests.bytes(range.request).slice(range.of_request..range.of_request + len_bytes),
        };
        let stalled_at = range.deadline;
        let (targets, in_flight) = (Vec::new(), Vec::new());
        let (was_posted, has_failed, found) = (false, false, None);
        let id = self.runs.begin(Run {
            range,
            bytes,
            targets,
            in_flight,
            was_posted,
            has_failed,
            intent_writes_left: 0,
            slots: 0..0,
            found,
            stalled_at,
        });
        let has_started = match start {
            RunStart::Now(targets) => self.start_run_with(id, targets, now),
            RunStart::Later | RunStart::Never => false,
        };
        if !has_started {
            self.runs.deferred.push(id);
        }
        plain
    }

    /// Determines whether a run from the page `first` on can start.
    fn run_start(&mut self, first: u64, is_read: bool, now: Nanos) -> RunStart {
        let (extent, _) = self.locate(first);
        let needs_entries = self.metadata.is_some() && !is_read;
        if needs_entries && (self.is_fenced() || self.extents[extent].is_lost()) {
            return RunStart::Never;
        }
        let targets = match is_read {
            true => self.replica_to_read(extent, first / READ_PAGES_MAX).map(|serial| vec![serial]),
            false => self.write_targets(extent, now),
        };
        let Some(targets) = targets else {
            let is_slab_requested = !is_read && !self.extents[extent].requested_slabs.is_empty();
            return if is_slab_requested { RunStart::Later } else { RunStart::Never };
        };
        let can_reach =
            |serial: &u32| self.extents[extent].replica(*serial).is_some_and(is_on_connected_node);
        if !targets.iter().all(can_reach) {
            RunStart::Never
        } else if needs_entries && !self.is_placement_committed() {
            RunStart::Later
        } else {
            RunStart::Now(targets)
        }
    }

    /// Starts a run with these replicas. Returns `false` if it must wait for slots of the redo log.
    fn start_run_with(&mut self, id: u32, targets: Vec<u32>, now: Nanos) -> bool {
        let (is_logged, is_volume) = (self.is_logged(), self.metadata.is_some());
        let Some(run) = &mut self.runs.runs[id as usize] else { return true };
        let is_written_to_volume = is_volume && !run.range.is_read;
        let count = (run.range.pages.end - run.range.pages.start) as usize;
        if is_logged && is_written_to_volume {
            let Some(slots) = self.redo.allocate(count) else { return false };
            run.slots = slots;
        }
        run.targets = targets;
        if !is_written_to_volume {
            self.post_to_targets(id, now);
            return true;
        }
        run.intent_writes_left = 1;
        let (pages, bytes, slots) = (run.range.pages.clone(), run.bytes.clone(), run.slots.clone());
        if !slots.is_empty() {
            let (extent, _) = self.locate(pages.start);
            let nodes = self.extents[extent].replicas.iter().filter_map(Replica::node).collect();
            if self.write_redo(nodes, slots.start, bytes.clone(), OnCommit::Run { run: id }, now)
                && let Some(run) = &mut self.runs.runs[id as usize]
            {
                run.intent_writes_left += 1;
            }
        }
        let sums = pages.clone().zip(bytes.chunks_exact(PAGE_BYTES));
        let sums: Vec<u64> = sums.map(|(page, bytes)| self.checksums.of(page, bytes)).collect();
        self.write_run_entries(id, pages, &sums, now);
        true
    }

    /// Starts deferred runs that can start now. The pages of those that cannot become operations. Returns whether one
    /// was started or split.
    pub(super) fn start_deferred_runs(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for id in self.runs.deferred.clone() {
            let Some(run) = &self.runs.runs[id as usize] else { continue };
            let start = match run.range.deadline > now {
                true => self.run_start(run.range.pages.start, run.range.is_read, now),
                false => RunStart::Never,
            };
            match start {
                RunStart::Later => continue,
                RunStart::Now(targets) => {
                    if !self.start_run_with(id, targets, now) {
                        continue;
                    }
                    self.runs.deferred.retain(|deferred| *deferred != id);
                }
                RunStart::Never => {
                    if let Some(mut run) = self.runs.take(id) {
                        run.has_failed = true;
                        self.finish_written_run(run, now);
                    }
                }
            }
            any = true;
        }
        any
    }

    /// Handles one committed write of the intent of a run: its entries at all members, or its pages in the redo log.
    /// After the last one the run is written in place.
    pub(super) fn commit_run_intent(&mut self, id: u32, now: Nanos) {
        let Some(run) = &mut self.runs.runs[id as usize] else { return };
        run.intent_writes_left -= 1;
        if run.intent_writes_left == 0 {
            self.post_to_targets(id, now);
        }
    }

    /// Starts the I/O of a run with its replicas.
    fn post_to_targets(&mut self, id: u32, now: Nanos) {
        let Some(run) = &mut self.runs.runs[id as usize] else { return };
        let replicas = run.targets.clone();
        run.was_posted = true;
        run.in_flight.extend_from_slice(&replicas);
        replicas.iter().for_each(|serial| self.io_started(*serial));
        replicas.into_iter().for_each(|replica| self.post_run(RunTag { run: id, replica }, now));
    }

    /// Fails the runs that wait for their entries to be committed, after this client has lost the volume.
    pub(super) fn fail_uncommitted_runs(&mut self, now: Nanos) {
        for id in 0..self.runs.runs.len() {
            if self.runs.runs[id].as_ref().is_some_and(|run| !run.was_posted)
                && let Some(mut run) = self.runs.take(id as u32)
            {
                run.has_failed = true;
                self.finish_written_run(run, now);
            }
        }
    }

    /// Returns whether a page can be part of a run.
    fn can_join_run(&self, page: u64, is_read: bool) -> bool {
        let (extent, at) = self.locate(page);
        let pages = &self.extents[extent].pages;
        // No replica stores a page that was never written. A page of a volume may be uncertain.
        let is_known = match is_read {
            true => pages.checksum(at).is_some() && !self.is_uncertain(page),
            false => pages.matches_entry(at),
        };
        is_known && !self.locks.contains_key(&page) && !self.uncertain_pages.contains_key(&page)
    }

    /// Returns the replica to read from: in-sync replicas in turn.
    fn replica_to_read(&self, extent: usize, turn: u64) -> Option<u32> {
        let replicas = &self.extents[extent].replicas;
        let turn = turn as usize % replicas.len().max(1);
        let mut in_turn = replicas[turn..].iter().chain(&replicas[..turn]);
        let found = in_turn.find(|replica| replica.is_in_sync() && is_on_connected_node(replica));
        found.map(|replica| replica.serial)
    }

    /// Starts the I/O of a run with a replica.
    fn post_run(&mut self, tag: RunTag, now: Nanos) {
        let Some(run) = &self.runs.runs[tag.run as usize] else { return };
        let (extent, at) = self.locate(run.range.pages.start);
        let (is_read, request, written) = (run.range.is_read, run.range.request, run.bytes.clone());
        let len_bytes = run.range.len_bytes();
        let location = self.extents[extent].replica(tag.replica).map(|replica| replica.location);
        let Some(ReplicaLocation::Node { node, grant: Some(grant), .. }) = location else {
            return self.on_run_io(tag, Err(()), now);
        };
        let (direction, buffer) = match is_read {
            true => {
                let buffer = self.requests.lend_buffer(request, len_bytes);
                (Direction::Read, buffer.unwrap_or_else(|| self.buffers.take(len_bytes)).into())
            }
            false => (Direction::Write, written.into()),
        };
        let (offset, context) = ((at * PAGE_BYTES) as u64, Tag::Run(tag));
        let request = Request { direction, grant, offset, buffer, context };
        let error = match self.nodes[node].session().map(|session| session.submit(request)) {
            Some(Ok(())) => return,
            Some(Err(error)) => error.why.to_string(),
            None => "there is no session".to_owned(),
        };
        self.end_session(node, error, now);
        self.on_run_io(tag, Err(()), now);
    }

    /// Handles the completion of a run's I/O request with a replica.
    pub(super) fn on_run_io(&mut self, tag: RunTag, result: Result<Buffer, ()>, now: Nanos) {
        self.io_finished(tag.replica);
        let Some(run) = &mut self.runs.runs[tag.run as usize] else { return };
        run.in_flight.retain(|serial| *serial != tag.replica);
        match result {
            Ok(buffer) => run.found = buffer.into_owned(),
            Err(()) => run.has_failed = true,
        }
        if !run.in_flight.is_empty() {
            return;
        }
        if let Some(run) = self.runs.take(tag.run) {
            if run.range.is_read { self.finish_read_run(run, now) } else { self.finish_written_run(run, now) }
        }
    }

    /// Completes the pages of a read run that match their checksums. Each other page continues as an operation.
    fn finish_read_run(&mut self, run: Run, now: Nanos) {
        let Run { range, found, targets, .. } = run;
        let mut found = found.unwrap_or_default();
        let mut wrong = self.wrong_pages(&range, &found).into_iter().peekable();
        self.counts.runs_broken += u64::from(wrong.peek().is_some());
        if self.requests.has_lent(range.request) {
            // The buffer was lost if the I/O failed.
            found.resize(range.len_bytes(), 0);
            self.requests.return_buffer(range.request, std::mem::take(&mut found));
        }
        for (page, part) in range.parts() {
            let Some((_, bytes)) = wrong.next_if(|(wrong, _)| *wrong == page) else {
                let at = (page - range.pages.start) as usize * PAGE_BYTES;
                self.counts.pages_read += 1;
                self.counts.pages_together += 1;
                self.requests.finish_part(&part, Ok(found.get(at..at + PAGE_BYTES)));
                self.release(page);
                continue;
            };
            let mut operation = Operation::new(page, OperationKind::Read(part), range.deadline);
            if let (Some(bytes), Some(replica)) = (bytes, targets.first()) {
                self.check_fetched_page(&mut operation, *replica, bytes);
            }
            self.begin_next(operation);
        }
        self.buffers.recycle(found);
        self.step_ready(now);
    }

    /// Returns the pages that do not match their checksums, with the bytes that were read instead.
    fn wrong_pages(&self, range: &RunPages, found: &[u8]) -> Vec<(u64, Option<Bytes>)> {
        let is_right = |page: u64, bytes: &[u8]| {
            let (extent, at) = self.locate(page);
            self.extents[extent].pages.checksum(at) == Some(self.checksums.of(page, bytes))
        };
        let mut chunks = found.chunks_exact(PAGE_BYTES);
        let pages = range.pages.clone().map(|page| (page, chunks.next()));
        let wrong = pages.filter(|(page, bytes)| !bytes.is_some_and(|bytes| is_right(*page, bytes)));
        wrong.map(|(page, bytes)| (page, bytes.map(Bytes::copy_from_slice))).collect()
    }

    /// Completes the pages of a written run if all present replicas have them. Otherwise some may have them, and each
    /// page is written again by an operation.
    fn finish_written_run(&mut self, run: Run, now: Nanos) {
        let Run { range, bytes, targets, has_failed, slots, was_posted, .. } = run;
        let (extent, _) = self.locate(range.pages.start);
        let there = self.extents[extent].replicas.iter().map(|replica| &replica.serial);
        let is_whole = !has_failed && there.eq(&targets);
        self.counts.runs_broken += u64::from(!is_whole && was_posted);
        for ((page, part), number) in range.parts().zip(0..) {
            let content = bytes.slice(number * PAGE_BYTES..(number + 1) * PAGE_BYTES);
            let (sum, (_, at)) = (self.checksums.of(page, &content), self.locate(page));
            if !is_whole {
                if was_posted {
                    // Until then the page holds either content.
                    self.mark_page_uncertain(page, sum);
                    if let Some(slot) = slots.clone().nth(number) {
                        self.keep_failed_write(page, content, slot);
                    }
                }
                self.begin_next(Operation::new(page, OperationKind::Write(part), range.deadline));
                continue;
            }
            self.pages_of(extent).written(at, sum);
            self.counts.pages_written += 1;
            self.counts.pages_together += 1;
            if let Some(pages) = self.requests.finish_part(&part, Ok(None)) {
                self.record_write_done(part.request, pages);
            }
            self.release(page);
        }
        self.release_slots(slots);
        self.step_ready(now);
    }
}

impl RunPages {
    fn len_bytes(&self) -> usize {
        (self.pages.end - self.pages.start) as usize * PAGE_BYTES
    }

    /// Returns its pages, each with its part of the request.
    fn parts(&self) -> impl Iterator<Item = (u64, Part)> + use<> {
        let (request, of_request) = (self.request, self.of_request);
        self.pages.clone().zip((of_request..).step_by(PAGE_BYTES).map(move |at| Part::full_page(request, at)))
    }
}

fn is_on_connected_node(replica: &Replica) -> bool {
    matches!(replica.location, ReplicaLocation::Node { grant: Some(_), .. })
}
