//! Recovery file: the state from which another process resumes an address space. A third process holds the file open,
//! usually as a memfd.
//!
//! ```text
//! page 0      magic number with version, and sizes; written when the file is created
//! 2 areas     placement ([`PlacementSnapshot`]), alternating: generation, length, checksum | bytes
//! table       checksum and generation of each page, 16 bytes
//! slots       one per request in progress: the bytes that it writes
//! ```
//!
//! A write is stored in its slot before any of its I/O is posted. A page that it writes in part is stored there in
//! full before it is posted: after an interrupted write, the rest of the page could not be determined. The next
//! process repeats these writes before anything else. The file is in memory: it outlives processes, but not a restart
//! of the machine.

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
/// Length of each area in bytes: more than the placement of the largest address space needs.
const AREA_BYTES: u64 = 64 << 20;
const TABLE_AT: u64 = PAGE + 2 * AREA_BYTES;
const ENTRY_BYTES: u64 = 16;
/// Number of pages in front of the bytes of a slot: its control words, the first page and the last page of the write.
const SLOT_HEAD_PAGES: u64 = 3;

/// Locations of all replicas.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PlacementSnapshot {
    /// Seed of the page checksums.
    pub seed: u64,
    pub last_serial: u32,
    pub last_slab: u64,
    /// Nodes, in the order of the indices used elsewhere.
    pub nodes: Vec<SavedNode>,
    pub replicas: Vec<SavedReplica>,
    /// Slabs to be returned: index of the node, and number of the slab.
    pub releasing: Vec<(usize, u64)>,
    /// Uncertain pages, of which a write failed, with the checksums of their possible contents.
    pub uncertain_pages: Vec<(u64, Vec<u64>)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedNode {
    pub address: String,
    /// Key of the lease, and its term in milliseconds.
    pub lease: Option<(LeaseKey, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedReplica {
    pub extent: usize,
    pub serial: u32,
    pub node: usize,
    pub slab: u64,
    pub region: RemoteRegion,
    pub is_in_sync: bool,
}

/// The page at one end of a request that the request writes in part.
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

/// State of a page that is written in part, in the control words of the slot.
const RECORDED: u64 = 1;
const DONE: u64 = 2;

/// A write that was in progress.
pub(super) struct UnfinishedWrite {
    pub slot: u32,
    pub order: u64,
    pub offset: u64,
    /// The bytes; pages that were recorded are complete.
    pub bytes: Vec<u8>,
    /// `true` if the first page, and the last page, were recorded.
    pub recorded: [bool; 2],
}

pub(super) struct RecoveryFile {
    file: File,
    slots_at: u64,
    slot_bytes: u64,
    generation: u64,
    last_order: u64,
    pages: u64,
    is_broken: bool,
}

impl RecoveryFile {
    /// Opens the file. The placement is `None` if the file is empty.
    ///
    /// # Errors
    /// Returns an error if the file belongs to another address space, is damaged or was incomplete, or if the address
    /// space has a spill file.
    pub fn open(file: File, config: &ClientConfig) -> Result<(Self, Option<PlacementSnapshot>), OpenError> {
        if config.spill.is_some() {
            return Err(bad("a spill file ends with its process; leave it out"));
        }
        let pages = config.size_bytes / PAGE;
        let sizes = [MAGIC, config.size_bytes, config.slab_bytes, config.pages_max as u64];
        let mut opened = Self {
            file,
            slots_at: (TABLE_AT + pages * ENTRY_BYTES).next_multiple_of(PAGE),
            slot_bytes: (config.pages_max as u64 + SLOT_HEAD_PAGES) * PAGE,
            generation: 0,
            last_order: 0,
            pages,
            is_broken: false,
        };
        if opened.file.metadata()?.len() == 0 {
            opened.file.write_all_at(&bytes_of(&sizes), 0)?;
            return Ok((opened, None));
        }
        if opened.words::<4>(0)? != sizes {
            return Err(bad("it is of another address space, or it could not be written any more"));
        }
        let mut newest = None;
        for area in 0..2 {
            let Some((generation, placement)) = opened.area(area)? else { continue };
            if generation > opened.generation {
                opened.generation = generation;
                newest = Some(placement);
            }
        }
        Ok((opened, newest))
    }

    fn area(&self, area: u64) -> Result<Option<(u64, PlacementSnapshot)>, OpenError> {
        let at = PAGE + area * AREA_BYTES;
        let [generation, len_bytes, sum] = self.words(at)?;
        if len_bytes == 0 || len_bytes > AREA_BYTES - PAGE {
            return Ok(None);
        }
        let mut bytes = vec![0; len_bytes as usize];
        self.read(&mut bytes, at + PAGE)?;
        // The area was not written completely; the other one is the newest then.
        if rapidhash_v3(&bytes) != sum ^ generation {
            return Ok(None);
        }
        let placement = postcard::from_bytes(&bytes).map_err(|error| bad(&error.to_string()))?;
        Ok(Some((generation, placement)))
    }

    /// Stores a new placement.
    pub fn write_placement(&mut self, placement: &PlacementSnapshot) {
        // A vector grows as needed, so encoding plain data into one cannot fail.
        let bytes = postcard::to_allocvec(placement).unwrap_or_default();
        self.generation += 1;
        let at = PAGE + self.generation % 2 * AREA_BYTES;
        let words = [self.generation, bytes.len() as u64, rapidhash_v3(&bytes) ^ self.generation];
        let fits = bytes.len() as u64 <= AREA_BYTES - PAGE;
        let written = if fits { self.file.write_all_at(&bytes, at + PAGE) } else { Err(too_large()) };
        self.check_write(written.and_then(|()| self.file.write_all_at(&bytes_of(&words), at)));
    }

    /// Returns the checksums and generations of all pages, in order.
    pub fn read_entries(&self) -> Result<Vec<(u64, u32)>, OpenError> {
        let mut bytes = vec![0; (self.pages * ENTRY_BYTES) as usize];
        self.read(&mut bytes, TABLE_AT)?;
        let entries = bytes.as_chunks::<16>().0.iter();
        Ok(entries
            .map(|entry| u128::from_le_bytes(*entry))
            .map(|word| (word as u64, (word >> 64) as u32))
            .collect())
    }

    /// Stores the checksums and generations of consecutive pages, from `first` on.
    pub fn write_entries(&mut self, first: u64, entries: impl Iterator<Item = (u64, u32)>) {
        let bytes: Vec<u8> = entries
            .flat_map(|(sum, generation)| (u128::from(generation) << 64 | u128::from(sum)).to_le_bytes())
            .collect();

        self.check_write(self.file.write_all_at(&bytes, TABLE_AT + first * ENTRY_BYTES));
    }

    const fn slot(&self, slot: u32) -> u64 {
        self.slots_at + slot as u64 * self.slot_bytes
    }

    /// Stores the beginning of a write.
    pub fn add_write(&mut self, slot: u32, offset: u64, bytes: &[u8]) {
        self.last_order += 1;
        let at = self.slot(slot);
        let words = [self.last_order, offset, bytes.len() as u64, 0, 0];
        let written = self.file.write_all_at(bytes, at + SLOT_HEAD_PAGES * PAGE);
        // The control words are in one page: all of them are written, or none.
        self.check_write(written.and_then(|()| self.file.write_all_at(&bytes_of(&words), at)));
    }

    /// Stores the complete content of a page that is written in part, before the page is posted.
    pub fn save_page(&mut self, slot: u32, end: End, page: &[u8]) {
        let at = self.slot(slot);
        let written = self.file.write_all_at(page, at + end.page() * PAGE);
        self.check_write(written.and_then(|()| self.set(at, end, RECORDED)));
    }

    /// Records that such a page is written. From now on other requests may write to it.
    pub fn mark_page_done(&mut self, slot: u32, end: End) {
        self.check_write(self.set(self.slot(slot), end, DONE));
    }

    fn set(&self, at: u64, end: End, word: u64) -> io::Result<()> {
        self.file.write_all_at(&word.to_le_bytes(), at + 8 * end.word())
    }

    /// Records that a write has completed.
    pub fn remove_write(&mut self, slot: u32) {
        self.check_write(self.file.write_all_at(&[0; 8], self.slot(slot)));
    }

    /// Returns the writes that were in progress, in the order in which they were accepted.
    pub fn unfinished(&mut self) -> Result<Vec<UnfinishedWrite>, OpenError> {
        let len_bytes = self.file.metadata()?.len();
        let slots = len_bytes.saturating_sub(self.slots_at).div_ceil(self.slot_bytes);
        let found = (0..slots as u32).map(|slot| self.unfinished_at(slot)).collect::<Result<Vec<_>, _>>()?;
        let mut found: Vec<UnfinishedWrite> = found.into_iter().flatten().collect();
        found.sort_unstable_by_key(|unfinished| unfinished.order);
        self.last_order = found.last().map_or(0, |last| last.order);
        Ok(found)
    }

    fn unfinished_at(&self, slot: u32) -> Result<Option<UnfinishedWrite>, OpenError> {
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
                // The first page may be the last one as well.
                page.extend_from_slice(bytes.get(PAGE_BYTES - in_page(offset)..).unwrap_or_default());
                (bytes, offset) = (page, offset / PAGE * PAGE);
            }
            DONE => {
                let left = bytes.split_off(bytes.len().min(PAGE_BYTES - in_page(offset)));
                (bytes, offset) = (left, (offset / PAGE + 1) * PAGE);
            }
            _ => {}
        }

        Ok(Some(UnfinishedWrite {
            slot,
            order,
            offset,
            bytes,
            recorded: [first == RECORDED, last == RECORDED],
        }))
    }

    fn words<const N: usize>(&self, at: u64) -> io::Result<[u64; N]> {
        let mut bytes = [[0; 8]; N];
        self.read(bytes.as_flattened_mut(), at)?;
        Ok(bytes.map(u64::from_le_bytes))
    }

    /// Bytes that were never written are zero.
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

    /// Handles the result of writing to the file. After an error the file is incomplete, hence of no use to another
    /// process. It is marked as such.
    fn check_write(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && !self.is_broken
        {
            self.is_broken = true;
            tracing::error!("the state with which another process could continue cannot be stored: {error}");
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
    OpenError::Saved(why.to_owned())
}
