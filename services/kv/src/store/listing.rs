//! The items of a partition, listed in parts: no part takes long, and changes may occur between them.

use super::arena::GRANULE_BYTES;
use super::item::{self, Header, state};
use super::partition::Partition;

/// Number of buckets of one part.
const PART_BUCKETS: usize = 64;

/// An item in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedItem<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) cas: u64,
    pub(crate) expires_ms: u64,
    pub(crate) accessed_s: u32,
    pub(crate) fetched: bool,
    pub(crate) value_bytes: usize,
    pub(crate) size_bytes: usize,
}

impl Partition {
    /// Returns the number of parts in which the items are listed.
    pub(crate) fn listing_parts(&self) -> u32 {
        self.index.len().div_ceil(PART_BUCKETS) as u32
    }

    /// Returns the live items of one part; none if the part does not exist. An item that is not changed is in exactly
    /// one part.
    pub(crate) fn listing(&self, part: u32, now_ms: u64) -> impl Iterator<Item = ListedItem<'_>> {
        let start = (part as usize * PART_BUCKETS).min(self.index.len());
        let end = (start + PART_BUCKETS).min(self.index.len());
        let items = self.index[start..end].iter().flat_map(|bucket| bucket.occupied());
        items.filter_map(move |(_, at)| {
            let header = Header::read(&self.arena, at);
            let live = !self.is_unreachable(&header, now_ms) && now_ms < self.flush_at_ms;
            live.then(|| ListedItem {
                key: &self.arena.bytes()[item::key(&self.arena, at, &header)],
                cas: header.cas,
                expires_ms: header.expires_ms,
                accessed_s: header.accessed_s,
                value_bytes: header.value_len as usize,
                fetched: header.state & state::FETCHED != 0,
                size_bytes: self.arena.block(at).granules as usize * GRANULE_BYTES,
            })
        })
    }
}
