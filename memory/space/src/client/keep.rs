//! What a client needs to go on in another process: a file that somebody else holds, usually a memfd.
//!
//! ```text
//! page 0      magic, version, sizes: written last, when the file is made
//! 2 areas     where pages are ([`Placement`]), in turn: generation, length, checksum | bytes
//! a table     checksum and generation of each page, 16 bytes
//! slots       one for each request that is not over: what it writes
//! ```
//!
//! A write is in its slot before anything is posted. A page of which it writes a part is there whole before it is posted:
//! nobody can tell from what a write left half done what the rest of the page was. The next process does such writes
//! again, first of all. The file lives in memory: it survives processes, not the machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use farcall_link::RemoteRegion;
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

use super::PAGE_BYTES;
use super::config::{ClientConfig, OpenError};
use crate::wire::LeaseKey;

const MAGIC: u64 = u64::from_le_bytes(*b"farkeep2");
const PAGE: u64 = PAGE_BYTES as u64;
/// Room for each area: the largest address space has less to say.
const AREA_BYTES: u64 = 64 << 20;
const TABLE_AT: u64 = PAGE + 2 * AREA_BYTES;
const ENTRY_BYTES: u64 = 16;
/// In front of the bytes of a slot: its words, its first page and its last.
const SLOT_HEAD_PAGES: u64 = 3;

/// Where pages are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Placement {
    /// Of checksums.
    pub seed: u64,
    pub last_serial: u32,
    pub last_slab: u64,
    /// Of the nodes, in the order in which all else counts them.
    pub nodes: Vec<KeptNode>,
    pub replicas: Vec<KeptReplica>,
    /// Slabs of nodes that are to be returned.
    pub leaving: Vec<(usize, u64)>,
    /// Pages of which a write failed.
    pub unsure: Vec<(u64, Vec<u64>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptNode {
    pub address: String,
    /// And its term in milliseconds.
    pub lease: Option<(LeaseKey, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptReplica {
    pub extent: usize,
    pub serial: u32,
    pub donor: usize,
    pub slab: u64,
    pub region: RemoteRegion,
    pub is_in_sync: bool,
}

/// Which of a request's pages it writes a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    First,
    Last,
}

impl End {
    const fn word(self) -> u64 {
        match self {
            Self::First => 3,
            Self::Last => 4,
        }
    }

    const fn page(self) -> u64 {
        match self {
            Self::First => 1,
            Self::Last => 2,
        }
    }
}

/// How far a page is of which a part is written.
const RECORDED: u64 = 1;
const DONE: u64 = 2;

/// A write that was not over.
pub(super) struct Unfinished {
    pub slot: u32,
    pub order: u64,
    pub offset: u64,
    /// Those of its pages that are recorded are whole.
    pub bytes: Vec<u8>,
    /// Whether the first page and the last one were recorded.
    pub recorded: [bool; 2],
}

pub(super) struct Keep {
    file: File,
    slots_at: u64,
    slot_bytes: u64,
    generation: u64,
    last_order: u64,
    pages: u64,
    is_broken: bool,
}

impl Keep {
    /// Reads what is there; `None` beside it if it is empty.
    pub fn open(file: File, config: &ClientConfig) -> Result<(Self, Option<Placement>), OpenError> {
        if config.spill.is_some() {
            return Err(bad("a spill file ends with its process; leave it out"));
        }
        let pages = config.size_bytes / PAGE;
        let sizes = [MAGIC, config.size_bytes, config.slab_bytes, config.pages_max as u64];
        let mut keep = Self {
            file,
            slots_at: (TABLE_AT + pages * ENTRY_BYTES).next_multiple_of(PAGE),
            slot_bytes: (config.pages_max as u64 + SLOT_HEAD_PAGES) * PAGE,
            generation: 0,
            last_order: 0,
            pages,
            is_broken: false,
        };
        if keep.file.metadata()?.len() == 0 {
            keep.file.write_all_at(&bytes_of(&sizes), 0)?;
            return Ok((keep, None));
        }
        if keep.words::<4>(0)? != sizes {
            return Err(bad("it is of another address space, or it could not be written any more"));
        }
        let mut newest = None;
        for area in 0..2 {
            let Some((generation, placement)) = keep.area(area)? else { continue };
            if generation > keep.generation {
                keep.generation = generation;
                newest = Some(placement);
            }
        }
        Ok((keep, newest))
    }

    fn area(&self, area: u64) -> Result<Option<(u64, Placement)>, OpenError> {
        let at = PAGE + area * AREA_BYTES;
        let [generation, len_bytes, sum] = self.words(at)?;
        if len_bytes == 0 || len_bytes > AREA_BYTES - PAGE {
            return Ok(None);
        }
        let mut bytes = vec![0; len_bytes as usize];
        self.read(&mut bytes, at + PAGE)?;
        // One that was not finished: the other is the newest then.
        if rapidhash_v3(&bytes) != sum ^ generation {
            return Ok(None);
        }
        let placement = postcard::from_bytes(&bytes).map_err(|error| bad(&error.to_string()))?;
        Ok(Some((generation, placement)))
    }

    /// Where pages are, from now on.
    pub fn place(&mut self, placement: &Placement) {
        // Vectors grow: serialising plain data into one cannot fail.
        let bytes = postcard::to_allocvec(placement).unwrap_or_default();
        self.generation += 1;
        let at = PAGE + self.generation % 2 * AREA_BYTES;
        let words = [self.generation, bytes.len() as u64, rapidhash_v3(&bytes) ^ self.generation];
        let fits = bytes.len() as u64 <= AREA_BYTES - PAGE;
        let written = if fits { self.file.write_all_at(&bytes, at + PAGE) } else { Err(too_large()) };
        self.wrote(written.and_then(|()| self.file.write_all_at(&bytes_of(&words), at)));
    }

    /// Checksum and generation of all pages, in order.
    pub fn table(&self) -> Result<Vec<(u64, u32)>, OpenError> {
        let mut bytes = vec![0; (self.pages * ENTRY_BYTES) as usize];
        self.read(&mut bytes, TABLE_AT)?;
        let entries = bytes.as_chunks::<16>().0.iter();
        Ok(entries
            .map(|entry| u128::from_le_bytes(*entry))
            .map(|word| (word as u64, (word >> 64) as u32))
            .collect())
    }

    /// These pages have these checksums and generations.
    pub fn pages(&mut self, first: u64, entries: impl Iterator<Item = (u64, u32)>) {
        let bytes: Vec<u8> = entries
            .flat_map(|(sum, generation)| (u128::from(generation) << 64 | u128::from(sum)).to_le_bytes())
            .collect();

        self.wrote(self.file.write_all_at(&bytes, TABLE_AT + first * ENTRY_BYTES));
    }

    const fn slot(&self, slot: u32) -> u64 {
        self.slots_at + slot as u64 * self.slot_bytes
    }

    /// A write begins.
    pub fn begin(&mut self, slot: u32, offset: u64, bytes: &[u8]) {
        self.last_order += 1;
        let at = self.slot(slot);
        let words = [self.last_order, offset, bytes.len() as u64, 0, 0];
        let written = self.file.write_all_at(bytes, at + SLOT_HEAD_PAGES * PAGE);
        // These few bytes are in one page: all of them, or none.
        self.wrote(written.and_then(|()| self.file.write_all_at(&bytes_of(&words), at)));
    }

    /// The whole of a page of which a part is written, before it is posted.
    pub fn record(&mut self, slot: u32, end: End, page: &[u8]) {
        let at = self.slot(slot);
        let written = self.file.write_all_at(page, at + end.page() * PAGE);
        self.wrote(written.and_then(|()| self.set(at, end, RECORDED)));
    }

    /// Such a page is written: others may write to it now.
    pub fn done(&mut self, slot: u32, end: End) {
        self.wrote(self.set(self.slot(slot), end, DONE));
    }

    fn set(&self, at: u64, end: End, word: u64) -> io::Result<()> {
        self.file.write_all_at(&word.to_le_bytes(), at + 8 * end.word())
    }

    /// A write is over.
    pub fn end(&mut self, slot: u32) {
        self.wrote(self.file.write_all_at(&[0; 8], self.slot(slot)));
    }

    /// Writes that were not over, in the order in which they came.
    pub fn unfinished(&mut self) -> Result<Vec<Unfinished>, OpenError> {
        let len_bytes = self.file.metadata()?.len();
        let slots = len_bytes.saturating_sub(self.slots_at).div_ceil(self.slot_bytes);
        let found = (0..slots as u32).map(|slot| self.unfinished_at(slot)).collect::<Result<Vec<_>, _>>()?;
        let mut found: Vec<Unfinished> = found.into_iter().flatten().collect();
        found.sort_unstable_by_key(|unfinished| unfinished.order);
        self.last_order = found.last().map_or(0, |last| last.order);
        Ok(found)
    }

    fn unfinished_at(&self, slot: u32) -> Result<Option<Unfinished>, OpenError> {
        let at = self.slot(slot);
        let [order, mut offset, len_bytes, first, last] = self.words(at)?;
        if order == 0 {
            return Ok(None);
        }
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.pages * PAGE);
        if !is_inside || len_bytes > self.slot_bytes {
            return Err(bad("a write in it is outside of the address space"));
        }
        let mut bytes = vec![0; len_bytes as usize];
        self.read(&mut bytes, at + SLOT_HEAD_PAGES * PAGE)?;
        let in_page = |byte: u64| (byte % PAGE) as usize;
        match last {
            RECORDED => {
                let mut page = vec![0; PAGE_BYTES];
                self.read(&mut page, at + End::Last.page() * PAGE)?;
                bytes.extend_from_slice(&page[in_page(offset + len_bytes)..]);
            }
            DONE => bytes.truncate(bytes.len() - in_page(offset + len_bytes)),
            _ => {}
        }
        match first {
            RECORDED => {
                let mut page = vec![0; PAGE_BYTES];
                self.read(&mut page, at + End::First.page() * PAGE)?;
                // It may be the last page, too.
                page.extend_from_slice(bytes.get(PAGE_BYTES - in_page(offset)..).unwrap_or_default());
                (bytes, offset) = (page, offset / PAGE * PAGE);
            }
            DONE => {
                let left = bytes.split_off(bytes.len().min(PAGE_BYTES - in_page(offset)));
                (bytes, offset) = (left, (offset / PAGE + 1) * PAGE);
            }
            _ => {}
        }

        Ok(Some(Unfinished { slot, order, offset, bytes, recorded: [first == RECORDED, last == RECORDED] }))
    }

    fn words<const N: usize>(&self, at: u64) -> io::Result<[u64; N]> {
        let mut bytes = [[0; 8]; N];
        self.read(bytes.as_flattened_mut(), at)?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    /// What was never written is zero.
    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], at + done as u64)? {
                0 => return Ok(()),
                len_bytes => done += len_bytes,
            }
        }
        Ok(())
    }

    /// A file that misses something is worth nothing to the next process, and says so.
    fn wrote(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !self.is_broken
        {
            self.is_broken = true;
            tracing::error!("what another process would need to go on cannot be kept: {error}");
            if let Err(error) = self.file.write_all_at(&[0xFF; 8], 0) {
                tracing::error!("and that cannot be noted: {error}");
            }
        }
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "there are too many replicas")
}

fn bad(why: &str) -> OpenError {
    OpenError::Kept(why.to_owned())
}
