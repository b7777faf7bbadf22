//! A load of random requests on an address space, and what each of them may bring.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod volumes;

use std::collections::BTreeMap;

use farcall_link::SplitMix64;
use farcall_memory::{Ended, IoError, PAGE_BYTES, Request, Work};

/// What a page may hold: one content, or several after a write that failed.
type Contents = Vec<Vec<u8>>;

/// A request under way.
struct UnderWay {
    offset: u64,
    len_bytes: usize,
    /// What is written.
    written: Option<Vec<u8>>,
}

/// Token of the note in flight; others count from one.
const NOTE_TOKEN: u64 = 1 << 50;

/// Makes requests, and keeps account of what every page may hold. Requests on one page may be under way together if they
/// are on no other: they are executed, and so end, in the order in which they were made.
pub struct Load {
    rng: SplitMix64,
    pages: Vec<Contents>,
    under_way: BTreeMap<u64, UnderWay>,
    /// What the first word of the notes may be; the last one may be in flight.
    notes: Vec<u64>,
    is_noting: bool,
    pub made: u64,
    pub failed: Vec<IoError>,
}

impl Load {
    pub fn new(seed: u64, pages: usize) -> Self {
        let pages = vec![vec![vec![0; PAGE_BYTES]]; pages];
        let (rng, under_way) = (SplitMix64::new(seed), BTreeMap::new());
        Self { rng, pages, under_way, notes: vec![0], is_noting: false, made: 0, failed: Vec::new() }
    }

    /// Makes a note, if none is in flight.
    pub fn note(&mut self) -> Option<Request> {
        if std::mem::replace(&mut self.is_noting, true) {
            return None;
        }
        let word = self.rng.next_u64();
        self.notes.push(word);
        Some(Request { token: NOTE_TOKEN, offset: 0, work: Work::Note(word.to_le_bytes().to_vec()) })
    }

    /// Checks that notes are those that were acknowledged last, or newer ones.
    pub fn check_notes(&self, notes: &[u8]) {
        let word = u64::from_le_bytes(*notes.first_chunk().unwrap());
        assert!(self.notes.contains(&word), "notes hold {word:x}: none of {:x?}", self.notes);
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    pub fn under_way(&self) -> usize {
        self.under_way.len() + usize::from(self.is_noting)
    }

    /// The next request, if its pages are free, or it is one more on a single page.
    pub fn request(&mut self) -> Option<Request> {
        let all = (self.pages.len() * PAGE_BYTES) as u64;
        // Whole pages, pieces of pages, several pages, several whole pages.
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
        let is_free = |of: &UnderWay| {
            let other = pages(of.offset, of.len_bytes);
            range.end <= other.start || other.end <= range.start || (range.len() == 1 && range == other)
        };
        if !self.under_way.values().all(is_free) {
            return None;
        }
        self.made += 1;
        let token = self.made;
        let written = self.chance(50).then(|| {
            let mut stream = SplitMix64::new(self.rng.next_u64());
            (0..len_bytes).map(|_| stream.next_u64() as u8).collect::<Vec<u8>>()
        });
        let work = written.clone().map_or(Work::Read { len_bytes }, |bytes| Work::Write(bytes.into()));
        self.under_way.insert(token, UnderWay { offset, len_bytes, written });
        Some(Request { token, offset, work })
    }

    /// Reads everything, page by page: requests for when nothing else is under way.
    pub fn read_page(&mut self, page: usize) -> Request {
        self.made += 1;
        let (offset, len_bytes) = ((page * PAGE_BYTES) as u64, PAGE_BYTES);
        self.under_way.insert(self.made, UnderWay { offset, len_bytes, written: None });
        Request { token: self.made, offset, work: Work::Read { len_bytes } }
    }

    /// Nobody will hear of what is under way: it was done, or was not, page by page.
    pub fn forget_under_way(&mut self) {
        for token in self.under_way.keys().copied().collect::<Vec<_>>() {
            self.ended(Ended { token, result: Err(IoError::Closed) });
        }
        self.is_noting = false;
        self.failed.retain(|error| *error != IoError::Closed);
    }

    /// Takes account of a write that somebody else makes.
    pub fn adopt(&mut self, request: &Request) {
        if let Work::Write(bytes) = &request.work {
            let written = Some(bytes.to_vec());
            let under_way = UnderWay { offset: request.offset, len_bytes: bytes.len(), written };
            self.under_way.insert(request.token, under_way);
        }
    }

    /// A walk over everything that was written.
    pub fn scrub(&mut self) -> Request {
        self.made += 1;
        self.under_way.insert(self.made, UnderWay { offset: 0, len_bytes: 0, written: None });
        Request { token: self.made, offset: 0, work: Work::Scrub }
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// A request is over. What it brought must be right.
    pub fn ended(&mut self, ended: Ended) {
        if ended.token == NOTE_TOKEN {
            self.is_noting = false;
            match ended.result {
                Ok(_) => drop(self.notes.drain(..self.notes.len() - 1)),
                Err(error) => self.failed.push(error),
            }
            return;
        }
        let Some(of) = self.under_way.remove(&ended.token) else { panic!("told twice of {}", ended.token) };
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
