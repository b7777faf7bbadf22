//! An operation on one page. It fetches the bytes of the page, if it needs them, from a replica that has them. Then it
//! stores bytes to all replicas that should have them.
//!
//! Before the entry of a write to a volume's page is written, the in-sync replicas of the page are made equal. The new
//! entry replaces the older of the page's two entries, so a replica with the content of that entry would match neither
//! afterwards.
//!
//! New content, and content that is replayed from the redo log, is written in place when its *intent* is committed: its
//! entry and its copies in the log (`redo.rs`).
//!
//! A write completes when every in-sync replica has it. An unreachable replica is waited for until it is reachable
//! again, until maintenance drops it, or until the deadline of the operation has passed. A failed write leaves the
//! page *uncertain*: both the earlier and the written content are valid until a read determines which one the page
//! holds.

mod fetch;
mod store;

use std::collections::VecDeque;

use bytes::Bytes;
use farcall_verbs::Nanos;

use super::part::Part;
use super::redo::{RedoLog, ZEROS};
use super::{BACKGROUND_MAX, Engine, PageTag};
use crate::client::PAGE_BYTES;
use crate::client::config::IoError;
use crate::client::extent::{Replica, ReplicaState};

/// Purpose of an operation.
#[derive(Debug)]
pub(super) enum OperationKind {
    Read(Part),
    Write(Part),
    /// Copies the page to a new replica.
    Copy {
        to: u32,
    },
    /// Reads every replica and repairs wrong ones.
    Scrub {
        is_periodic: bool,
    },
    /// Writes the content that the redo log has to the replicas that lack it.
    Replay,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationState {
    /// Another operation holds the page.
    Queued,
    /// The operation holds the page.
    Started,
    Fetching,
    /// Before the entry of a write is committed, the content of the page is written to the replicas that differ from
    /// it.
    Repairing,
    Storing,
}

#[derive(Debug)]
pub(super) struct Operation {
    page: u64,
    kind: OperationKind,
    state: OperationState,
    pub deadline: Nanos,
    /// `true` after the deadline: the operation no longer waits.
    pub is_late: bool,
    /// Replicas with an I/O request in flight.
    pub in_flight: Vec<u32>,
    /// Replicas whose bytes were wrong, or must be overwritten.
    wrong: Vec<u32>,
    /// Replicas whose bytes were right.
    right: Vec<u32>,
    /// Replicas that could not be read.
    failed: Vec<u32>,
    /// Bytes of the page; `None` until they are known.
    bytes: Option<Bytes>,
    /// Replicas to be written.
    left: Vec<u32>,
    stored: Vec<u32>,
    /// `true` if part of a write may have been stored.
    was_posted: bool,
    intent: Intent,
    /// Replicas to whose nodes the content was written in the redo log, or is being written.
    logged: Vec<u32>,
    /// Slot of the redo log with the content of a write; `None` if there is none yet.
    slot: Option<u32>,
    /// Alternative content of the page, if a replica has it; `with_alternative` are the replicas that do.
    alternative: Option<Bytes>,
    with_alternative: Vec<u32>,
}

/// State of the intent of a write to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    None,
    /// This number of writes is left.
    InProgress(u32),
    Committed,
}

impl Operation {
    pub const fn new(page: u64, kind: OperationKind, deadline: Nanos) -> Self {
        Self {
            page,
            kind,
            state: OperationState::Queued,
            deadline,
            is_late: false,
            in_flight: Vec::new(),
            wrong: Vec::new(),
            right: Vec::new(),
            failed: Vec::new(),
            bytes: None,
            left: Vec::new(),
            stored: Vec::new(),
            was_posted: false,
            intent: Intent::None,
            logged: Vec::new(),
            slot: None,
            alternative: None,
            with_alternative: Vec::new(),
        }
    }

    pub(super) fn is_intent_committed(&self) -> bool {
        self.intent == Intent::Committed
    }

    pub(super) const fn is_intent_pending(&self) -> bool {
        matches!(self.intent, Intent::InProgress(_))
    }

    /// Records that this number of writes was started, which include those to the logs of `logged`.
    pub(super) fn begin_intent(&mut self, writes: u32, mut logged: Vec<u32>) {
        self.intent = if writes > 0 { Intent::InProgress(writes) } else { Intent::Committed };
        self.logged.append(&mut logged);
    }

    /// Records that one of the writes is committed.
    pub(super) const fn on_intent_write_committed(&mut self) {
        if let Intent::InProgress(left) = self.intent {
            self.intent = if left > 1 { Intent::InProgress(left - 1) } else { Intent::Committed };
        }
    }

    /// Stops waiting for the writes of the intent.
    pub(super) const fn abandon_intent(&mut self) {
        if self.is_intent_pending() {
            self.intent = Intent::Committed;
        }
    }

    /// Returns whether the operation stores new content, and not that which the page has.
    pub(super) fn stores_new_content(&self) -> bool {
        self.is_write() && self.state == OperationState::Storing
    }

    /// Returns whether the operation stores the content of a pending page.
    pub(super) fn stores_pending(&self, redo: &RedoLog) -> bool {
        !self.stores_new_content() && redo.is_pending(self.page)
    }

    /// Returns whether an intent precedes the stores of the operation. None does if they repair replicas that are
    /// damaged: another replica has the content, and the page is lost without that anyway.
    pub(super) fn needs_intent(&self, redo: &RedoLog) -> bool {
        self.stores_new_content() || self.stores_pending(redo)
    }

    /// Returns whether possibly some members have an intent of new content.
    fn has_new_intent(&self) -> bool {
        self.stores_new_content() && self.intent != Intent::None
    }

    /// Returns the replicas that are left to be written, and whose nodes lack the content in their redo log.
    pub(super) fn unlogged(&self) -> Vec<u32> {
        self.left.iter().filter(|serial| !self.logged.contains(serial)).copied().collect()
    }

    pub(super) fn content(&self) -> Bytes {
        self.bytes.clone().unwrap_or_default()
    }

    pub(super) fn stores_zeros(&self) -> bool {
        self.bytes().is_some_and(|bytes| bytes == ZEROS)
    }

    pub(super) const fn slot(&self) -> Option<u32> {
        self.slot
    }

    pub(super) const fn set_slot(&mut self, slot: u32) {
        self.slot = Some(slot);
    }

    pub(super) const fn kind(&self) -> &OperationKind {
        &self.kind
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// Returns whether the operation is a write of the user.
    fn is_write(&self) -> bool {
        matches!(self.kind, OperationKind::Write(_))
    }
}

impl Engine {
    /// Starts an operation, or queues it for its page.
    pub(super) fn begin(&mut self, operation: Operation) {
        if matches!(operation.kind, OperationKind::Copy { .. } | OperationKind::Scrub { .. }) {
            self.background += 1;
        }
        let page = operation.page;
        let id = self.insert_operation(operation);
        match self.locks.get_mut(&page) {
            Some(waiting) => waiting.push_back(id),
            None => {
                self.locks.insert(page, VecDeque::new());
                self.start_operation(id);
            }
        }
    }

    /// Starts an operation on a page that the caller holds, before the operations queued for it.
    pub(super) fn begin_next(&mut self, operation: Operation) {
        let page = operation.page;
        let id = self.insert_operation(operation);
        if let Some(waiting) = self.locks.get_mut(&page) {
            waiting.push_front(id);
        }
        self.release(page);
    }

    fn insert_operation(&mut self, operation: Operation) -> u32 {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u32 - 1
        });
        self.operations[id as usize] = Some(operation);
        id
    }

    /// Releases a page to the next operation queued for it.
    pub(super) fn release(&mut self, page: u64) {
        if let Some(waiting) = self.locks.get_mut(&page) {
            match waiting.pop_front() {
                Some(next) => self.start_operation(next),
                None => drop(self.locks.remove(&page)),
            }
        }
    }

    fn start_operation(&mut self, id: u32) {
        if let Some(operation) = &mut self.operations[id as usize] {
            operation.state = OperationState::Started;
            self.ready.push_back(id);
        }
    }

    /// Returns whether another operation that copies or scrubs may start.
    pub(super) const fn has_background_room(&self) -> bool {
        self.background < BACKGROUND_MAX
    }

    /// Advances an operation as far as possible. It is removed from the table for this time.
    pub(super) fn step(&mut self, id: u32, now: Nanos) {
        let Some(mut operation) = self.operations[id as usize].take() else { return };
        match operation.state {
            // The wake-up was for an earlier operation of this number.
            OperationState::Queued => return self.operations[id as usize] = Some(operation),
            OperationState::Started => operation.state = self.first_state(&mut operation),
            OperationState::Fetching | OperationState::Repairing | OperationState::Storing => {}
        }
        if self.is_fenced() {
            return match operation.in_flight.is_empty() {
                true => self.finish(id, operation, Err(IoError::Fenced)),
                false => self.operations[id as usize] = Some(operation),
            };
        }
        let outcome = loop {
            let state = operation.state;
            let outcome = match state {
                OperationState::Fetching => self.fetch(id, &mut operation, now),
                OperationState::Repairing => self.repair(id, &mut operation, now),
                _ => self.store(id, &mut operation, now),
            };
            // Enter the next state at once.
            if outcome.is_some() || operation.state == state {
                break outcome;
            }
        };
        match outcome {
            None => self.operations[id as usize] = Some(operation),
            Some(result) => self.finish(id, operation, result),
        }
    }

    fn first_state(&self, operation: &mut Operation) -> OperationState {
        match &operation.kind {
            OperationKind::Write(part)
                if part.of_page == (0..PAGE_BYTES) && !self.is_uncertain(operation.page) =>
            {
                operation.bytes = Some(self.requests.written(part));
                OperationState::Storing
            }
            _ => OperationState::Fetching,
        }
    }

    /// Returns whether a page of a volume may hold other content than the latest write.
    pub(super) fn is_uncertain(&self, page: u64) -> bool {
        let (extent, at) = self.locate(page);
        self.extents[extent].pages.alternative(at).is_some()
    }

    /// Suspends an operation until its extent changes. An operation past its deadline fails instead.
    fn wait_for_extent(&mut self, id: u32, operation: &Operation) -> Option<Result<(), IoError>> {
        if !operation.in_flight.is_empty() {
            return None;
        }
        if operation.is_late {
            return Some(Err(IoError::Unreachable { page: operation.page }));
        }
        let (extent, _) = self.locate(operation.page);
        let waiting = &mut self.extents[extent].waiting;
        if !waiting.contains(&id) {
            waiting.push(id);
        }
        None
    }

    /// Completes an operation and releases its page.
    fn finish(&mut self, id: u32, mut operation: Operation, result: Result<(), IoError>) {
        let page = operation.page;
        let is_intended = operation.has_new_intent() && self.is_logged();
        if operation.is_write() && result.is_err() && (operation.was_posted || is_intended) {
            self.mark_failed_write(&operation);
        }
        self.release_slots(operation.slot);
        self.counts.lost += u64::from(matches!(result, Err(IoError::Lost { .. })));
        self.count_repairs(&operation);
        let bytes = operation.bytes.take().unwrap_or_default();
        match &operation.kind {
            OperationKind::Read(part) => {
                self.counts.pages_read += 1;
                self.requests.finish_part(part, result.map(|()| Some(&*bytes)));
            }
            OperationKind::Write(part) => {
                self.counts.pages_written += 1;
                self.record_part_done(part, page);
                if let Some(pages) = self.requests.finish_part(part, result.map(|()| None)) {
                    self.record_write_done(part.request, pages);
                }
            }
            OperationKind::Copy { to } => {
                self.background -= 1;
                self.page_copied(page, *to, result);
            }
            OperationKind::Scrub { is_periodic } => {
                self.background -= 1;
                self.page_scrubbed(*is_periodic);
            }
            OperationKind::Replay => self.page_replayed(),
        }
        self.unused.push(id);
        self.release(page);
    }

    /// Counts and logs the replicas whose wrong bytes an operation has overwritten.
    fn count_repairs(&mut self, operation: &Operation) {
        let repaired = operation.stored.iter().filter(|serial| operation.wrong.contains(serial));
        for serial in repaired.clone() {
            self.log_repair(operation.page, *serial);
        }
        self.counts.repaired += repaired.count() as u64;
    }

    /// Logs a repair of an in-sync replica: the memory of its node, or the transport to it, corrupts data.
    fn log_repair(&self, page: u64, serial: u32) {
        let (extent, _) = self.locate(page);
        let replica = self.extents[extent].replica(serial).filter(|replica| replica.is_in_sync());
        if let Some(node) = replica.and_then(Replica::node) {
            let (node, client) = (&self.nodes[node].address, &self.config.name);
            tracing::warn!(client, page, node, "a replica had wrong bytes; it was repaired from another one");
        }
    }

    fn page_copied(&mut self, page: u64, to: u32, result: Result<(), IoError>) {
        let (extent, at) = self.locate(page);
        if result.is_ok() {
            self.counts.copied += 1;
        }
        let Some(replica) = self.extents[extent].replica_mut(to) else { return };
        if let ReplicaState::Resyncing { next, copying } = &mut replica.state {
            *copying -= 1;
            // A page that is lost stays lost. An unreachable one is copied later.
            if matches!(result, Err(IoError::Unreachable { .. })) {
                *next = (*next).min(at);
            }
        }
    }

    /// Creates the tag of an I/O request and counts the request.
    pub(super) fn tag(&mut self, id: u32, operation: &mut Operation, replica: u32) -> PageTag {
        operation.in_flight.push(replica);
        self.io_started(replica);
        PageTag { operation: id, replica }
    }

    /// Counts the start of an I/O request with a replica.
    pub(super) fn io_started(&mut self, replica: u32) {
        *self.in_flight.entry(replica).or_default() += 1;
    }

    /// Counts the end of an I/O request with a replica.
    pub(super) fn io_finished(&mut self, replica: u32) {
        if let Some(count) = self.in_flight.get_mut(&replica) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&replica);
            }
        }
    }

    /// Handles the completion of an operation's I/O request.
    pub(super) fn on_page_io(&mut self, tag: PageTag, result: Result<Bytes, ()>, now: Nanos) {
        let PageTag { operation: id, replica } = tag;
        self.io_finished(replica);
        let Some(mut operation) = self.operations[id as usize].take() else { return };
        operation.in_flight.retain(|serial| *serial != replica);
        match (operation.state, result) {
            (OperationState::Fetching, Ok(found)) => self.check_fetched_page(&mut operation, replica, found),
            (OperationState::Fetching, Err(())) => operation.failed.push(replica),
            (_, Ok(_)) => {
                operation.left.retain(|serial| *serial != replica);
                operation.stored.push(replica);
            }
            // It is written again when reachable, or not at all if it is dropped.
            (_, Err(())) => {}
        }
        self.operations[id as usize] = Some(operation);
        self.step(id, now);
    }

    /// Returns the bytes to store, and records that a write was posted. A repair stores the present content of the
    /// page, so it does not count.
    pub(super) fn bytes_to_store(operation: &mut Operation) -> Bytes {
        operation.was_posted |= operation.state == OperationState::Storing;
        operation.bytes.clone().unwrap_or_default()
    }

    pub(super) const fn page_of(operation: &Operation) -> u64 {
        operation.page
    }
}
