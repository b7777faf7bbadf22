//! A load of random requests on an address space, with the valid results of each.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod volumes;

use std::collections::BTreeMap;

use farcall_link::SplitMix64;
use farcall_memory::{CompletedRequest, IoError, PAGE_BYTES, Request, Work};

/// Valid contents of a page: one, or several after a failed write.
type Contents = Vec<Vec<u8>>;

/// A request in progress.
struct InProgress {
    offset: u64,
    len_bytes: usize,
    /// Bytes to write; `None` for a read.
    written: Option<Vec<u8>>,
}

/// Token of the metadata write in progress; other tokens count from one.
const METADATA_TOKEN: u64 = 1 << 50;

/// Creates requests, and records the valid contents of every page. Several requests may be in progress on a page if
/// each concerns that page only: they are executed, and complete, in order.
pub struct Load {
    rng: SplitMix64,
    pages: Vec<Contents>,
    in_progress: BTreeMap<u64, InProgress>,
    /// Valid values of the first word of the metadata; the last one may be in progress.
    metadata: Vec<u64>,
    is_writing_metadata: bool,
    pub made: u64,
    pub failed: Vec<IoError>,
}

impl Load {
    pub fn new(seed: u64, pages: usize) -> Self {
        let pages = vec![vec![vec![0; PAGE_BYTES]]; pages];
        let (rng, in_progress) = (SplitMix64::new(seed), BTreeMap::new());
        Self {
            rng,
            pages,
            in_progress,
            metadata: vec![0],
            is_writing_metadata: false,
            made: 0,
            failed: Vec::new(),
        }
    }

    /// Creates a metadata write if none is in progress.
    pub fn write_metadata(&mut self) -> Option<Request> {
        if std::mem::replace(&mut self.is_writing_metadata, true) {
            return None;
        }
        let word = self.rng.next_u64();
        self.metadata.push(word);
        Some(Request {
            token: METADATA_TOKEN,
            offset: 0,
            work: Work::WriteMetadata(word.to_le_bytes().to_vec()),
        })
    }

    /// Checks that the metadata contains the last acknowledged write or a later one.
    pub fn check_metadata(&self, metadata: &[u8]) {
        let word = u64::from_le_bytes(*metadata.first_chunk().unwrap());
        assert!(self.metadata.contains(&word), "notes hold {word:x}: none of {:x?}", self.metadata);
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    pub fn in_progress(&self) -> usize {
        self.in_progress.len() + usize::from(self.is_writing_metadata)
    }

    /// Returns the next request if its pages are free, or if it is another one on a single page.
    pub fn request(&mut self) -> Option<Request> {
        let all = (self.pages.len() * PAGE_BYTES) as u64;
        // One page, part of a page or two, several pages, several full pages.
        let (offset, len_bytes) = match self.rng.below(4) {
            0 => (self.rng.below(self.pages.len() as u64) * PAGE_BYTES as u64, PAGE_BYTES),
            1 => (self.rng.below(all), 1 + self.rng.below(300) as usize),
            2 => (self.rng.below(all), 1 + self.rng.below(5 * PAGE_BYTES as u64) as usize),
            _ => {
                let first = self.rng.below(self.pages.len() as u64) * PAGE_BYTES as u64;
                (first, (2 + self.rng.below(5) as usize) * PAGE_BYTES)
            }
        };
        let len_bytes = len_bytes.min((all - offset) as usize);
        let range = pages(offset, len_bytes);
        let is_free = |of: &InProgress| {
            let other = pages(of.offset, of.len_bytes);
            range.end <= other.start || other.end <= range.start || (range.len() == 1 && range == other)
        };
        if !self.in_progress.values().all(is_free) {
            return None;
        }
        self.made += 1;
        let token = self.made;
        let written = self.chance(50).then(|| {
            let mut stream = SplitMix64::new(self.rng.next_u64());
            (0..len_bytes).map(|_| stream.next_u64() as u8).collect::<Vec<u8>>()
        });
        let work = written.clone().map_or(Work::Read { len_bytes }, |bytes| Work::Write(bytes.into()));
        self.in_progress.insert(token, InProgress { offset, len_bytes, written });
        Some(Request { token, offset, work })
    }

    /// Creates a read of one page, to be issued when no other request is in progress.
    pub fn read_page(&mut self, page: usize) -> Request {
        self.made += 1;
        let (offset, len_bytes) = ((page * PAGE_BYTES) as u64, PAGE_BYTES);
        self.in_progress.insert(self.made, InProgress { offset, len_bytes, written: None });
        Request { token: self.made, offset, work: Work::Read { len_bytes } }
    }

    /// Records that requests in progress will not be reported: each page of theirs was executed, or was not.
    pub fn forget_in_progress(&mut self) {
        for token in self.in_progress.keys().copied().collect::<Vec<_>>() {
            self.ended(CompletedRequest { token, result: Err(IoError::Closed) });
        }
        self.is_writing_metadata = false;
        self.failed.retain(|error| *error != IoError::Closed);
    }

    /// Records a write that is issued elsewhere.
    pub fn adopt(&mut self, request: &Request) {
        if let Work::Write(bytes) = &request.work {
            let written = Some(bytes.to_vec());
            let in_progress = InProgress { offset: request.offset, len_bytes: bytes.len(), written };
            self.in_progress.insert(request.token, in_progress);
        }
    }

    /// Creates a scrub.
    pub fn scrub(&mut self) -> Request {
        self.made += 1;
        self.in_progress.insert(self.made, InProgress { offset: 0, len_bytes: 0, written: None });
        Request { token: self.made, offset: 0, work: Work::Scrub }
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Checks the result of a completed request.
    pub fn ended(&mut self, ended: CompletedRequest) {
        if ended.token == METADATA_TOKEN {
            self.is_writing_metadata = false;
            match ended.result {
                Ok(_) => drop(self.metadata.drain(..self.metadata.len() - 1)),
                Err(error) => self.failed.push(error),
            }
            return;
        }
        let Some(of) = self.in_progress.remove(&ended.token) else { panic!("told twice of {}", ended.token) };
        for page in pages(of.offset, of.len_bytes) {
            let first = page * PAGE_BYTES;
            let from = of.offset as usize;
            let (start, end) = (from.max(first), (from + of.len_bytes).min(first + PAGE_BYTES));
            let (in_page, in_request) = (start - first..end - first, start - from..end - from);
            let contents = &mut self.pages[page];
            match (&of.written, &ended.result) {
                (None, Ok(found)) => {
                    let found = &found[in_request];
                    let before = contents.len();
                    contents.retain(|content| content[in_page.clone()] == *found);
                    assert!(!contents.is_empty(), "page {page} brought none of the {before} right contents");
                }
                (None, Err(_)) => {}
                (Some(written), result) => {
                    let mut after = contents.clone();
                    for content in &mut after {
                        content[in_page.clone()].copy_from_slice(&written[in_request.clone()]);
                    }
                    if result.is_ok() {
                        contents.clear();
                    }
                    contents.extend(after);
                    contents.dedup();
                }
            }
        }
        self.failed.extend(ended.result.err());
    }
}

fn pages(offset: u64, len_bytes: usize) -> std::ops::Range<usize> {
    let (from, to) = (offset as usize, offset as usize + len_bytes);
    from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)
}
