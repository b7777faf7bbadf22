//! Volume metadata: what each member of a volume stores in addition to slabs, for the next mount.
//!
//! ```text
//! 2 areas     placement ([`PlacementRecord`]), alternating: generation, length, checksum | version, bytes
//! table       two entries of 16 bytes per page: checksum of the page, generation, check of the entry
//! user        user metadata: a journal of files
//! redo log    slots with contents of pages (`engine/redo.rs`)
//! ```
//!
//! An entry is written before anything of its page is stored, and replaces the older of the page's two entries. Hence
//! one of the two entries describes the page, wherever a mount was interrupted. If an entry is torn, nothing was
//! stored after it.

use std::collections::BTreeMap;

use farcall_link::SplitMix64;
use rapidhash::v3::rapidhash_v3;
use serde::{Deserialize, Serialize};

use super::PAGE_BYTES;
use super::config::ClientConfig;

const VERSION: u16 = 1;
const HEAD_BYTES: usize = 24;
/// Length of an entry in bytes; a page has two.
pub(super) const ENTRY_BYTES: usize = 16;
const PAGE: u64 = PAGE_BYTES as u64;
/// Upper bound of the length of a replica in the encoded placement, in bytes.
const REPLICA_BYTES: u64 = 24;
const NODES_BYTES: u64 = 4 << 10;
/// Maximum number of slots of the redo log: pages that are being written at one time.
pub(super) const REDO_SLOTS_MAX: u64 = 512;

/// Locations of all in-sync replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlacementRecord {
    pub size_bytes: u64,
    pub slab_bytes: u64,
    pub last_serial: u32,
    pub last_slab: u64,
    /// Identifiers of nodes within the volume; replicas contain indices of this vector.
    pub nodes: Vec<u64>,
    /// In-sync replicas.
    pub replicas: Vec<ReplicaRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplicaRecord {
    pub extent: u32,
    pub node: u16,
    pub slab: u64,
}

/// Expected content of a page: checksum of the latest write, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub sum: u64,
    pub generation: u32,
}

/// Pages that were ever written, each with its newer entry and the older one, if there is one.
pub(super) type Table = BTreeMap<u64, (Entry, Option<Entry>)>;

impl Entry {
    /// Encodes the entry. A secret keys its check, so that damage at a node does not look like an entry.
    pub fn to_bytes(self, page: u64, secret: u64) -> [u8; ENTRY_BYTES] {
        let check = u128::from(self.check(page, secret)) << 96;
        (check | u128::from(self.generation) << 64 | u128::from(self.sum)).to_le_bytes()
    }

    fn parse(bytes: [u8; ENTRY_BYTES], page: u64, secret: u64) -> Option<Self> {
        let word = u128::from_le_bytes(bytes);
        let entry = Self { sum: word as u64, generation: (word >> 64) as u32 };
        (entry.generation > 0 && entry.check(page, secret) == (word >> 96) as u32).then_some(entry)
    }

    const fn check(self, page: u64, secret: u64) -> u32 {
        let sum = SplitMix64::mix(self.sum ^ secret);
        (SplitMix64::mix(sum ^ page ^ (self.generation as u64) << 32) >> 32) as u32
    }
}

/// Layout of the metadata area of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pages: u64,
    area_bytes: u64,
    user_bytes: u64,
    /// Number of slots of the redo log.
    redo_slots: u64,
    /// Secret that keys the checks.
    secret: u64,
}

impl Layout {
    pub fn new(config: &ClientConfig, user_bytes: u64, secret: u64) -> Self {
        let replicas = config.size_bytes.div_ceil(config.slab_bytes) * (config.replicas as u64 + 1);
        let area_bytes = (replicas * REPLICA_BYTES + NODES_BYTES).next_multiple_of(PAGE);
        let pages = config.size_bytes / PAGE;
        Self { pages, area_bytes, user_bytes, redo_slots: pages.min(REDO_SLOTS_MAX), secret }
    }

    const fn table_at(&self) -> u64 {
        2 * self.area_bytes
    }

    pub const fn user_at(&self) -> u64 {
        (self.table_at() + self.pages * 2 * ENTRY_BYTES as u64).next_multiple_of(PAGE)
    }

    /// Returns the length of the area in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.slot_at(self.redo_slots as u32)
    }

    /// Returns the offset of the redo log. Nodes have different contents from there on.
    pub const fn redo_at(&self) -> u64 {
        (self.user_at() + self.user_bytes).next_multiple_of(PAGE)
    }

    pub const fn redo_slots(&self) -> u64 {
        self.redo_slots
    }

    /// Returns the offset of a slot of the redo log.
    pub const fn slot_at(&self, slot: u32) -> u64 {
        self.redo_at() + slot as u64 * PAGE
    }

    /// Returns the slots of a redo log.
    pub fn redo_slots_in<'a>(&self, log: &'a [u8]) -> &'a [[u8; PAGE_BYTES]] {
        let slots = log.as_chunks().0;
        &slots[..slots.len().min(self.redo_slots as usize)]
    }

    /// Returns the offset and the bytes of the entry to be written before a page is stored.
    pub fn encode_entry(&self, page: u64, entry: Entry) -> (u64, [u8; ENTRY_BYTES]) {
        let position = 2 * page + u64::from(entry.generation % 2);
        (self.table_at() + position * ENTRY_BYTES as u64, entry.to_bytes(page, self.secret))
    }

    /// Returns the offset and the bytes that record the next contents of consecutive pages: for each page its present
    /// entry, if it has one, and the next entry. All members have the present entries already. These are included so
    /// that one write covers all pages.
    pub fn encode_entries(
        &self,
        first: u64,
        pages: impl Iterator<Item = (Option<Entry>, Entry)>,
    ) -> (u64, Vec<u8>) {
        let mut bytes = Vec::new();
        for ((now, next), page) in pages.zip(first..) {
            let mut pair = [[0; ENTRY_BYTES]; 2];
            for entry in now.into_iter().chain([next]) {
                pair[(entry.generation % 2) as usize] = entry.to_bytes(page, self.secret);
            }
            bytes.extend_from_slice(pair.as_flattened());
        }
        (self.table_at() + 2 * first * ENTRY_BYTES as u64, bytes)
    }

    /// Returns the offset and the bytes of a placement; `None` if it is too long.
    pub fn encode_placement(&self, placement: &PlacementRecord, generation: u64) -> Option<(u64, Vec<u8>)> {
        // A vector grows as needed, so encoding plain data into one cannot fail.
        let body = postcard::to_allocvec(&(VERSION, placement)).unwrap_or_default();
        let words = [generation, body.len() as u64, self.checksum(&body, generation)];
        let bytes = [words.map(u64::to_le_bytes).as_flattened(), &body].concat();
        (bytes.len() as u64 <= self.area_bytes).then_some((generation % 2 * self.area_bytes, bytes))
    }

    fn checksum(&self, body: &[u8], generation: u64) -> u64 {
        rapidhash_v3(body) ^ SplitMix64::mix(generation ^ self.secret)
    }

    /// Returns the newest valid placement in the members' metadata, with its generation. The metadata is untrusted
    /// input: anything invalid is ignored.
    pub fn read_placement(&self, metadata: &[Vec<u8>]) -> Option<(u64, PlacementRecord)> {
        let area = |metadata: &Vec<u8>, at: u64| {
            let area = metadata.get(at as usize..)?.get(..self.area_bytes as usize)?;
            let (head, rest) = area.split_at_checked(HEAD_BYTES)?;
            let mut words = head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let (generation, len_bytes, sum) = (words.next()?, words.next()?, words.next()?);
            let body = rest.get(..usize::try_from(len_bytes).ok()?)?;
            if generation == 0 || self.checksum(body, generation) != sum {
                return None;
            }
            let (version, placement) = postcard::from_bytes::<(u16, PlacementRecord)>(body).ok()?;
            (version == VERSION).then_some((generation, placement))
        };
        let areas = metadata.iter().flat_map(|metadata| [area(metadata, 0), area(metadata, self.area_bytes)]);
        areas.flatten().max_by_key(|(generation, _)| *generation)
    }

    /// Returns the pages that were ever written, each with its newer entry and the older one, if there is one. If an
    /// entry of one member is torn or damaged, that of another member is used.
    pub fn read_page_table(&self, metadata: &[Vec<u8>]) -> Table {
        let tables: Vec<_> = metadata.iter().map(|metadata| self.table(metadata)).collect();
        let pages = (0..self.pages).filter_map(|page| {
            let pairs = tables.iter().filter_map(|table| table.get(page as usize));
            Some((page, self.read_pairs(pairs, page)?))
        });
        pages.collect()
    }

    fn table<'a>(&self, metadata: &'a [u8]) -> &'a [Pair] {
        metadata.get(self.table_at() as usize..).unwrap_or_default().as_chunks().0
    }

    fn read_pairs<'a>(
        &self,
        pairs: impl Iterator<Item = &'a Pair>,
        page: u64,
    ) -> Option<(Entry, Option<Entry>)> {
        let (mut positions, mut is_blank) = ([None; 2], true);
        // Nearly all entries of a large volume are blank.
        for pair in pairs.filter(|pair| **pair != [0; 2 * ENTRY_BYTES]) {
            is_blank = false;
            for (position, entry) in positions.iter_mut().zip(pair.as_chunks::<ENTRY_BYTES>().0) {
                let entry = Entry::parse(*entry, page, self.secret);
                *position = newer(*position, entry);
            }
        }
        match (newer(positions[0], positions[1]), positions) {
            (Some(newest), [even, odd]) => Some((newest, if Some(newest) == even { odd } else { even })),
            (None, _) if is_blank => None,
            // Torn or damaged entries show only that the page may have been written. No content has such a checksum,
            // except by chance.
            (None, _) => Some((Entry { sum: SplitMix64::mix(page ^ self.secret), generation: 1 }, None)),
        }
    }

    /// Returns the user metadata.
    pub fn read_user<'a>(&self, metadata: &'a [u8]) -> &'a [u8] {
        let user = metadata.get(self.user_at() as usize..).unwrap_or_default();
        &user[..user.len().min(self.user_bytes as usize)]
    }

    pub const fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    /// Returns the offset of a range of user metadata; `None` if the range is not within it.
    pub fn user_offset(&self, offset: u64, len_bytes: usize) -> Option<u64> {
        let end = offset.checked_add(len_bytes as u64)?;
        (end <= self.user_bytes).then(|| self.user_at() + offset)
    }
}

/// The two encoded entries of a page.
type Pair = [u8; 2 * ENTRY_BYTES];

fn newer(a: Option<Entry>, b: Option<Entry>) -> Option<Entry> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if is_newer(b.generation, a.generation) { b } else { a }),
        (entry, None) | (None, entry) => entry,
    }
}

/// Generations wrap around.
const fn is_newer(generation: u32, than: u32) -> bool {
    generation.wrapping_sub(than).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout() -> Layout {
        let config = ClientConfig { size_bytes: 64 * PAGE, slab_bytes: 8 * PAGE, ..ClientConfig::default() };
        Layout::new(&config, 3 * PAGE, 5)
    }

    fn put(metadata: &mut [u8], (at, bytes): (u64, impl AsRef<[u8]>)) {
        metadata[at as usize..][..bytes.as_ref().len()].copy_from_slice(bytes.as_ref());
    }

    fn placement(last_slab: u64) -> PlacementRecord {
        let replicas =
            (0..8).map(|extent| ReplicaRecord { extent, node: 0, slab: u64::from(extent) }).collect();
        PlacementRecord {
            size_bytes: 64 * PAGE,
            slab_bytes: 8 * PAGE,
            last_serial: 9,
            last_slab,
            nodes: vec![1],
            replicas,
        }
    }

    #[test]
    fn finds_the_last_two_page_entries_and_skips_torn_ones() {
        let layout = layout();
        let mut metadata = vec![0; layout.len_bytes() as usize];
        let read = |metadata: &[u8]| layout.read_page_table(&[metadata.to_vec()]);
        assert!(read(&metadata).is_empty());
        let entry = |generation| Entry { sum: u64::from(generation) * 7, generation };
        for generation in 1..6 {
            put(&mut metadata, layout.encode_entry(9, entry(generation)));
            let previous = (generation > 1).then(|| entry(generation - 1));
            assert_eq!(read(&metadata), BTreeMap::from([(9, (entry(generation), previous))]));
        }
        let (at, bytes) = layout.encode_entry(9, entry(6));
        for torn in 1..ENTRY_BYTES {
            let mut copy = metadata.clone();
            put(&mut copy, (at, &bytes[..torn]));
            assert_eq!(read(&copy)[&9], (entry(5), None), "{torn} bytes");
            // The entry of another member is valid, or not written yet.
            assert_eq!(layout.read_page_table(&[copy, metadata.clone()])[&9], (entry(5), Some(entry(4))));
        }
        // An entry of another page or of another volume is invalid.
        let (at, _) = layout.encode_entry(10, entry(1));
        put(&mut metadata, (at, entry(1).to_bytes(9, 5)));
        put(&mut metadata, (at + 2 * ENTRY_BYTES as u64, entry(1).to_bytes(11, 6)));
        let found = read(&metadata);
        assert!(
            found.len() == 3 && [10, 11].iter().all(|page| found[page].0.sum != 7 && found[page].1.is_none())
        );
    }

    #[test]
    fn encodes_entries_of_adjacent_pages_as_one_write() {
        let layout = layout();
        let entry = |generation| Entry { sum: u64::from(generation) * 7, generation };
        let pages = [(None, 1), (Some(1), 2), (Some(2), 3), (Some(u32::MAX), 2)];
        let pages = pages.map(|(now, next): (Option<u32>, u32)| (now.map(entry), entry(next)));
        let mut one_by_one = vec![0; layout.len_bytes() as usize];
        let mut together = one_by_one.clone();
        for ((now, next), page) in pages.into_iter().zip(5..) {
            let entries = now.into_iter().chain([next]);
            entries.for_each(|entry| put(&mut one_by_one, layout.encode_entry(page, entry)));
        }
        let (position, bytes) = layout.encode_entries(5, pages.into_iter());
        assert_eq!((position, bytes.len()), (layout.encode_entry(5, entry(2)).0, 4 * 2 * ENTRY_BYTES));
        put(&mut together, (position, bytes));
        assert!(together == one_by_one);
    }

    #[test]
    fn compares_generations_across_wrap_around() {
        assert!(is_newer(2, u32::MAX) && !is_newer(u32::MAX, 2) && is_newer(8, 7));
    }

    #[test]
    fn finds_the_newest_valid_placement() {
        let layout = layout();
        let mut metadata = vec![0; layout.len_bytes() as usize];
        let read = |metadata: &[u8]| layout.read_placement(&[metadata.to_vec()]);
        assert_eq!(read(&metadata), None);
        put(&mut metadata, layout.encode_placement(&placement(1), 1).unwrap());
        put(&mut metadata, layout.encode_placement(&placement(2), 2).unwrap());
        assert_eq!(read(&metadata), Some((2, placement(2))));
        let (at, bytes) = layout.encode_placement(&placement(3), 3).unwrap();
        let previous = metadata.clone();
        // After length and checksum, the two placements differ only in the number of the slab.
        let last_other =
            (0..bytes.len()).rfind(|byte| bytes[*byte] != previous[at as usize + *byte]).unwrap();
        for torn in 0..=last_other {
            metadata.copy_from_slice(&previous);
            put(&mut metadata, (at, &bytes[..torn]));
            assert_eq!(read(&metadata).unwrap().0, 2, "{torn} bytes");
        }
        put(&mut metadata, (at, &bytes));
        assert_eq!(read(&metadata), Some((3, placement(3))));
        let too_many = PlacementRecord { nodes: vec![u64::MAX; 1 << 10], ..placement(4) };
        assert_eq!(layout.encode_placement(&too_many, 4), None);
    }

    #[test]
    fn bounds_user_metadata() {
        let layout = layout();
        assert_eq!(layout.user_offset(0, 3 * PAGE_BYTES), Some(layout.user_at()));
        assert_eq!((layout.user_offset(1, 3 * PAGE_BYTES), layout.user_offset(u64::MAX, 2)), (None, None));
    }

    proptest! {
        #[test]
        fn reads_or_skips_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let layout = layout();
            let bytes = [bytes.clone(), bytes];
            let _ = (layout.read_placement(&bytes), layout.read_page_table(&bytes), layout.read_user(&bytes[0]));
            prop_assert!(layout.redo_slots_in(&bytes[0]).len() as u64 <= layout.redo_slots());
        }
    }
}
