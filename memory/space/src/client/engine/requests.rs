//! Requests of the user: split into pages, and assembled again.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use farcall_verbs::Nanos;

use super::Engine;
use super::metadata::MetadataReplication;
use super::operation::{Operation, OperationKind};
use super::part::Part;
use super::runs::RunPages;
use crate::client::PAGE_BYTES;
use crate::client::config::{CompletedRequest, IoError, Request, SubmitError, Work};
use crate::client::extent::Replica;
use crate::client::recovery_file::{End, UnfinishedWrite};

/// A request in progress.
struct Pending {
    token: u64,
    offset: u64,
    data: Data,
    /// Number of operations in progress.
    left: usize,
    error: Option<IoError>,
}

enum Data {
    /// Bytes read so far.
    Read(Vec<u8>),
    /// Bytes to write.
    Write(Bytes),
}

impl Data {
    fn len_bytes(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }

    const fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

pub(super) struct Requests {
    pending: Vec<Option<Pending>>,
    unused: Vec<u32>,
    /// Number of pages of all requests in progress.
    pages: usize,
    completed: VecDeque<CompletedRequest>,
    /// Repeated writes of an earlier process. No other request is accepted until they have completed: if this process
    /// exits as well, repeating them again must not overwrite later writes.
    repeated: BTreeSet<u32>,
    /// The scrub in progress.
    pub scrub: Option<Scrub>,
    /// Tokens of the queued scrubs; `None` for the one requested by nodes.
    waiting_scrubs: VecDeque<Option<u64>>,
    /// Number of pages that the scrub in progress for nodes, or the latest one, has begun to read.
    scrubbed_for_nodes: u64,
}

/// State of a scrub, which visits all pages.
#[derive(Clone, Copy)]
pub(super) struct Scrub {
    /// Token of the user's request; `None` if nodes requested it.
    token: Option<u64>,
    pub next: u64,
    pub in_flight: u32,
}

impl Requests {
    pub const fn new() -> Self {
        Self {
            pending: Vec::new(),
            unused: Vec::new(),
            pages: 0,
            completed: VecDeque::new(),
            repeated: BTreeSet::new(),
            scrub: None,
            waiting_scrubs: VecDeque::new(),
            scrubbed_for_nodes: 0,
        }
    }

    pub fn next_completed(&mut self) -> Option<CompletedRequest> {
        self.completed.pop_front()
    }

    pub fn pending(&self) -> usize {
        let scrubs = self.scrub.iter().map(|scrub| &scrub.token).chain(&self.waiting_scrubs);
        let scrubs = scrubs.filter(|token| token.is_some()).count();
        self.pending.len() - self.unused.len() + scrubs
    }

    /// Reserves the numbers of another process's requests, which [`Engine::repeat_writes`] starts again. The numbers
    /// between are free.
    pub fn reserve(&mut self, taken: &[u32]) {
        let count = taken.iter().max().map_or(0, |last| last + 1);
        self.pending.resize_with(count as usize, || None);
        self.unused.extend((0..count).filter(|id| !taken.contains(id)));
    }

    fn begin(&mut self, pending: Pending) -> u32 {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() as u32 - 1
        });
        self.pending[id as usize] = Some(pending);
        id
    }

    /// Returns the bytes that a request writes; empty for a read.
    pub fn bytes(&self, id: u32) -> Bytes {
        match self.pending[id as usize].as_ref().map(|pending| &pending.data) {
            Some(Data::Write(bytes)) => bytes.clone(),
            _ => Bytes::new(),
        }
    }

    /// Returns the bytes that a part writes.
    pub fn written(&self, part: &Part) -> Bytes {
        self.bytes(part.request).slice(part.of_request.clone())
    }

    /// Lends the buffer of a read whose `len_bytes` bytes are all read by one I/O request.
    pub fn lend_buffer(&mut self, id: u32, len_bytes: usize) -> Option<Vec<u8>> {
        match self.pending[id as usize].as_mut().map(|pending| &mut pending.data) {
            Some(Data::Read(bytes)) if bytes.len() == len_bytes => Some(std::mem::take(bytes)),
            _ => None,
        }
    }

    /// Returns whether the buffer of a request is lent.
    pub fn has_lent(&self, id: u32) -> bool {
        let data = self.pending[id as usize].as_ref().map(|pending| &pending.data);
        matches!(data, Some(Data::Read(bytes)) if bytes.is_empty())
    }

    /// Returns a lent buffer, with the bytes that were read.
    pub fn return_buffer(&mut self, id: u32, buffer: Vec<u8>) {
        if let Some(Data::Read(bytes)) = self.pending[id as usize].as_mut().map(|pending| &mut pending.data) {
            *bytes = buffer;
        }
    }

    /// Records the end of a part. The result of a read contains the page unless it is already in the buffer of the
    /// request. Returns the pages of the request if it is a write that is complete now.
    pub fn finish_part(&mut self, part: &Part, result: Result<Option<&[u8]>, IoError>) -> Option<Range<u64>> {
        self.pages -= 1;
        let slot = &mut self.pending[part.request as usize];
        let pending = slot.as_mut()?;
        pending.left -= 1;
        match (result, &mut pending.data) {
            (Ok(Some(page)), Data::Read(bytes)) => {
                bytes[part.of_request.clone()].copy_from_slice(&page[part.of_page.clone()]);
            }
            (Ok(_), _) => {}
            (Err(error), _) => pending.error = pending.error.or(Some(error)),
        }
        if pending.left > 0 {
            return None;
        }
        let Pending { token, offset, data, error, .. } = slot.take()?;
        self.unused.push(part.request);
        let (read, written) = match data {
            Data::Read(bytes) => (bytes, None),
            Data::Write(bytes) => (Vec::new(), Some(pages_of(offset, bytes.len()))),
        };
        self.completed.push_back(CompletedRequest { token, result: error.map_or(Ok(read), Err) });
        written
    }

    /// Completes a write of user metadata.
    pub fn complete(&mut self, token: u64, result: Result<Vec<u8>, IoError>) {
        self.completed.push_back(CompletedRequest { token, result });
    }

    /// Queues a scrub, which begins when those before it have ended; `None` is that of nodes.
    pub fn begin_scrub(&mut self, token: Option<u64>) {
        self.waiting_scrubs.push_back(token);
        if self.scrub.is_none() {
            self.next_scrub();
        }
    }

    /// Returns whether a scrub that nodes requested is in progress, or waits.
    pub fn is_scrubbed_for_nodes(&self) -> bool {
        self.scrub.is_some_and(|scrub| scrub.token.is_none()) || self.waiting_scrubs.contains(&None)
    }

    /// Returns how many pages the scrub that nodes requested has begun to read.
    pub const fn scrubbed_for_nodes(&self) -> u64 {
        self.scrubbed_for_nodes
    }

    /// Records that the scrub in progress has begun to read a page.
    pub fn count_scrubbed(&mut self, page: u64) {
        if let Some(scrub) = &mut self.scrub {
            (scrub.next, scrub.in_flight) = (page + 1, scrub.in_flight + 1);
            self.scrubbed_for_nodes += u64::from(scrub.token.is_none());
        }
    }

    /// Ends the scrub in progress, and begins the next one. Returns whether it was that of nodes.
    pub fn finish_scrub(&mut self) -> bool {
        let Some(scrub) = self.scrub.take() else { return false };
        if let Some(token) = scrub.token {
            self.completed.push_back(CompletedRequest { token, result: Ok(Vec::new()) });
        }
        self.next_scrub();
        scrub.token.is_none()
    }

    fn next_scrub(&mut self) {
        let next = self.waiting_scrubs.pop_front();
        self.scrub = next.map(|token| Scrub { token, next: 0, in_flight: 0 });
        if next == Some(None) {
            self.scrubbed_for_nodes = 0;
        }
    }
}

/// Returns the pages of a range in bytes.
fn pages_of(offset: u64, len_bytes: usize) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    offset / page_bytes..(offset + len_bytes as u64).div_ceil(page_bytes)
}

impl Engine {
    /// Returns whether a request of `pages` pages would be accepted now.
    pub fn has_room(&self, pages: usize) -> bool {
        self.requests.repeated.is_empty() && self.requests.pages + pages <= self.config.pages_max
    }

    /// Returns whether a page has been written, or may have been.
    pub fn is_written(&self, page: u64) -> bool {
        let (extent, at) = self.locate(page);
        self.extents[extent].pages.checksum(at).is_some() || self.locks.contains_key(&page)
    }

    /// Returns whether a page is known to hold exactly these bytes: no operation holds it, no write of it has failed
    /// since the last one that succeeded, a replica is in sync, and the checksum matches. For a page that was never
    /// written, returns whether the bytes are zeros.
    pub fn holds(&self, page: u64, bytes: &[u8]) -> bool {
        let (extent, at) = self.locate(page);
        let extent = &self.extents[extent];
        let is_unsure = self.uncertain_pages.contains_key(&page) || extent.pages.alternative(at).is_some();
        if is_unsure || self.locks.contains_key(&page) {
            return false;
        }
        let expected = match extent.pages.checksum(at) {
            Some(sum) => extent.replicas.iter().any(Replica::is_in_sync).then_some(sum),
            None => Some(self.checksums.zeros_checksum(page)),
        };
        expected == Some(self.checksums.of(page, bytes))
    }

    /// Accepts a request. Requests that share a page are executed in order. [`Engine::next_completed`] returns a
    /// request when it has completed.
    ///
    /// # Errors
    /// Returns an error if the range is not within the address space, or if too many pages are in progress.
    pub fn submit(&mut self, request: Request, now: Nanos) -> Result<(), SubmitError> {
        let Request { token, offset, work } = request;
        let is_read_only = self.metadata.as_ref().is_some_and(MetadataReplication::is_read_only);
        if is_read_only && matches!(work, Work::Write(_) | Work::WriteMetadata(_)) {
            self.requests.complete(token, Err(IoError::ReadOnly));
            return Ok(());
        }
        let (len_bytes, is_read) = match &work {
            Work::Read { len_bytes } => (*len_bytes, true),
            Work::Write(bytes) => (bytes.len(), false),
            Work::WriteMetadata(bytes) => return self.submit_metadata(token, offset, bytes, now),
            Work::Scrub => {
                self.requests.begin_scrub(Some(token));
                self.next_maintenance_at = now;
                return Ok(());
            }
        };
        let size_bytes = self.config.size_bytes;
        let end = offset.checked_add(len_bytes as u64).filter(|end| *end <= size_bytes && len_bytes > 0);
        end.ok_or(SubmitError::Range { offset, len_bytes, size_bytes })?;
        let pages = pages_of(offset, len_bytes);
        let count = (pages.end - pages.start) as usize;
        if !self.has_room(count) {
            return Err(SubmitError::Full { pages: self.requests.pages, pages_max: self.config.pages_max });
        }
        let data = match work {
            Work::Write(bytes) => Data::Write(bytes),
            _ => Data::Read(self.buffers.take(len_bytes)),
        };
        let id = self.requests.begin(Pending { token, offset, data, left: count, error: None });
        if !is_read && let Some(recovery_file) = &mut self.recovery_file {
            recovery_file.add_write(id, offset, &self.requests.bytes(id));
        }
        self.begin_parts(id, pages, [false; 2], now);
        Ok(())
    }

    /// Repeats writes that another process had begun, before all other requests.
    pub(super) fn repeat_writes(&mut self, unfinished: Vec<UnfinishedWrite>, now: Nanos) {
        self.requests.reserve(&unfinished.iter().map(|unfinished| unfinished.slot).collect::<Vec<_>>());
        for UnfinishedWrite { slot, order, offset, bytes, recorded } in unfinished {
            let pages = pages_of(offset, bytes.len());
            let left = (pages.end - pages.start) as usize;
            if left == 0 {
                self.record_write_done(slot, pages);
                self.requests.unused.push(slot);
                continue;
            }
            // The token is unused: the caller's process has exited.
            self.requests.repeated.insert(slot);
            let pending = Pending {
                token: u64::MAX - order,
                offset,
                data: Data::Write(bytes.into()),
                left,
                error: None,
            };
            self.requests.pending[slot as usize] = Some(pending);
            self.begin_parts(slot, pages, recorded, now);
        }
    }

    fn begin_parts(&mut self, id: u32, pages: Range<u64>, recorded: [bool; 2], now: Nanos) {
        let Some(Pending { offset, data, left, .. }) = &self.requests.pending[id as usize] else {
            return;
        };
        let (offset, end, is_read, left) = (*offset, offset + data.len_bytes() as u64, data.is_read(), *left);
        self.requests.pages += left;
        let page_bytes = PAGE_BYTES as u64;
        let deadline = now + self.config.patience;
        // Full pages that need no special treatment form runs.
        let full_pages = match recorded {
            [false, false] => offset.div_ceil(page_bytes)..end / page_bytes,
            _ => 0..0,
        };
        let mut next = pages.start;
        while next < pages.end {
            let page = next;
            next += 1;
            if full_pages.contains(&page) {
                let of_request = (page * page_bytes - offset) as usize;
                let run_pages =
                    RunPages { request: id, pages: page..full_pages.end, of_request, is_read, deadline };
                let taken = self.start_run(run_pages, now);
                if taken > 0 {
                    next = page + taken;
                    continue;
                }
            }
            let first = page * page_bytes;
            let (from, to) = (offset.max(first), end.min(first + page_bytes));
            let cut = match (from > first, to < first + page_bytes) {
                (true, _) => Some(End::First),
                (false, true) => Some(End::Last),
                (false, false) if recorded[0] && page == pages.start => Some(End::First),
                (false, false) if recorded[1] && page + 1 == pages.end => Some(End::Last),
                (false, false) => None,
            };
            let part = Part {
                request: id,
                of_page: (from - first) as usize..(to - first) as usize,
                of_request: (from - offset) as usize..(to - offset) as usize,
                end: cut,
            };
            let kind = if is_read { OperationKind::Read(part) } else { OperationKind::Write(part) };
            self.begin(Operation::new(page, kind, deadline));
        }
        self.step_ready(now);
    }

    /// Stores the content of the pages of a write that succeeded or failed, before its result is reported.
    pub(super) fn record_write_done(&mut self, slot: u32, pages: Range<u64>) {
        self.save_placement();
        self.save_pages(pages);
        self.requests.repeated.remove(&slot);
        if let Some(recovery_file) = &mut self.recovery_file {
            recovery_file.remove_write(slot);
        }
    }
}
