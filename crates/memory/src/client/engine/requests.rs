//! Requests of the user: cut into pages, put together again.

use std::collections::VecDeque;
use std::ops::Range;

use farcall_verbs::Nanos;

use super::Engine;
use super::operation::{Aim, Operation};
use crate::client::PAGE_BYTES;
use crate::client::config::{Ended, IoError, Refused, Request, Work};
use crate::client::extent::Replica;

/// A request that is not over.
struct Pending {
    token: u64,
    /// What is written, or was read so far.
    bytes: Vec<u8>,
    is_read: bool,
    /// Operations that are not over.
    left: usize,
    error: Option<IoError>,
}

/// A part of a request: of which, and which bytes of a page are which of it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    request: u32,
    pub of_page: Range<usize>,
    of_request: Range<usize>,
}

pub(super) struct Requests {
    pending: Vec<Option<Pending>>,
    unused: Vec<u32>,
    /// Pages of all of them.
    pages: usize,
    ended: VecDeque<Ended>,
    /// A scrub that goes on: its request, and where it is.
    pub scrub: Option<Scrub>,
    waiting_scrubs: VecDeque<u64>,
}

/// A walk over all pages.
#[derive(Clone, Copy)]
pub(super) struct Scrub {
    token: u64,
    pub next: u64,
    pub under_way: u32,
}

impl Requests {
    pub const fn new() -> Self {
        Self {
            pending: Vec::new(),
            unused: Vec::new(),
            pages: 0,
            ended: VecDeque::new(),
            scrub: None,
            waiting_scrubs: VecDeque::new(),
        }
    }

    pub fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    pub fn pending(&self) -> usize {
        let scrubs = usize::from(self.scrub.is_some()) + self.waiting_scrubs.len();
        self.pending.len() - self.unused.len() + scrubs
    }

    fn begin(&mut self, pending: Pending) -> u32 {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() as u32 - 1
        });
        self.pending[id as usize] = Some(pending);
        id
    }

    /// The bytes that a part writes.
    pub fn written(&self, part: &Part) -> &[u8] {
        let pending = self.pending[part.request as usize].as_ref();
        pending.map_or(&[], |pending| &pending.bytes[part.of_request.clone()])
    }

    /// A part is over; for a read, with the page.
    pub fn part_ended(&mut self, part: &Part, result: Result<&[u8], IoError>) {
        self.pages -= 1;
        let slot = &mut self.pending[part.request as usize];
        let Some(pending) = slot else { return };
        pending.left -= 1;
        match result {
            Ok(page) if pending.is_read => {
                pending.bytes[part.of_request.clone()].copy_from_slice(&page[part.of_page.clone()]);
            }
            Ok(_) => {}
            Err(error) => pending.error = pending.error.or(Some(error)),
        }
        if pending.left > 0 {
            return;
        }
        if let Some(Pending { token, bytes, is_read, error, .. }) = slot.take() {
            self.unused.push(part.request);
            let read = if is_read { bytes } else { Vec::new() };
            self.ended.push_back(Ended { token, result: error.map_or(Ok(read), Err) });
        }
    }

    /// The scrub has come to its end.
    pub fn scrub_ended(&mut self) {
        if let Some(scrub) = self.scrub.take() {
            self.ended.push_back(Ended { token: scrub.token, result: Ok(Vec::new()) });
        }
        let next = self.waiting_scrubs.pop_front();
        self.scrub = next.map(|token| Scrub { token, next: 0, under_way: 0 });
    }
}

/// The pages of a range.
fn pages_of(offset: u64, len_bytes: usize) -> Range<u64> {
    let page_bytes = PAGE_BYTES as u64;
    offset / page_bytes..(offset + len_bytes as u64).div_ceil(page_bytes)
}

impl Engine {
    /// Whether a request of so many pages would be taken now.
    pub fn has_room(&self, pages: usize) -> bool {
        self.requests.pages + pages <= self.config.pages_max
    }

    /// Whether a page has been written, or may have been.
    pub fn is_written(&self, page: u64) -> bool {
        let (extent, at) = self.place(page);
        self.extents[extent].pages.sum(at).is_some() || self.locks.contains_key(&page)
    }

    /// Whether a page is known to hold exactly these bytes: nothing is under way with it, no write of it has failed
    /// since, a replica is in sync, and the checksum of what was written last is theirs. Of a page that was never
    /// written: whether they are zeros.
    pub fn holds(&self, page: u64, bytes: &[u8]) -> bool {
        if self.unsure.contains_key(&page) || self.locks.contains_key(&page) {
            return false;
        }
        let (extent, at) = self.place(page);
        let extent = &self.extents[extent];
        let held = match extent.pages.sum(at) {
            Some(sum) => extent.replicas.iter().any(Replica::is_in_sync).then_some(sum),
            None => Some(self.sums.of_zeros(page)),
        };
        held == Some(self.sums.of(page, bytes))
    }

    /// Takes a request. Requests that share a page are executed in the order in which they came; one that is over is
    /// told of by [`Engine::next_ended`].
    ///
    /// # Errors
    /// If it is not inside of the address space, or too much is not over.
    pub fn submit(&mut self, request: Request, now: Nanos) -> Result<(), Refused> {
        let Request { token, offset, work } = request;
        let (len_bytes, is_read) = match &work {
            Work::Read { len_bytes } => (*len_bytes, true),
            Work::Write(bytes) => (bytes.len(), false),
            Work::Scrub => {
                self.requests.waiting_scrubs.push_back(token);
                if self.requests.scrub.is_none() {
                    self.requests.scrub_ended();
                }
                self.look_at = now;
                return Ok(());
            }
        };
        let size_bytes = self.config.size_bytes;
        let end = offset.checked_add(len_bytes as u64).filter(|end| *end <= size_bytes && len_bytes > 0);
        let end = end.ok_or(Refused::Range { offset, len_bytes, size_bytes })?;
        let page_bytes = PAGE_BYTES as u64;
        let pages = pages_of(offset, len_bytes);
        let count = (pages.end - pages.start) as usize;
        if !self.has_room(count) {
            return Err(Refused::Full { pages: self.requests.pages, pages_max: self.config.pages_max });
        }
        self.requests.pages += count;
        let bytes = match work {
            Work::Write(bytes) => bytes,
            _ => vec![0; len_bytes],
        };
        let id = self.requests.begin(Pending { token, bytes, is_read, left: count, error: None });
        let deadline = now + self.config.patience;
        for page in pages {
            let first = page * page_bytes;
            let (from, to) = (offset.max(first), end.min(first + page_bytes));
            let part = Part {
                request: id,
                of_page: (from - first) as usize..(to - first) as usize,
                of_request: (from - offset) as usize..(to - offset) as usize,
            };
            let aim = if is_read { Aim::Read(part) } else { Aim::Write(part) };
            self.begin(Operation::new(page, aim, deadline));
        }
        self.step_ready(now);
        Ok(())
    }
}
