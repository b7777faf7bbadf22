//! Memory of keys and values: a buddy allocator over a region from which clients READ.
//!
//! An extent is never changed, but it may be freed and reused before a client READs it. The checksum in the client's
//! copy of the entry does not match then.

use std::sync::Arc;

use farcall_link::Region;

/// Minimum length of an extent in bytes.
pub(super) const GRANULE_BYTES: usize = 64;
/// Number of block sizes: 2^0 to 2^31 granules.
const ORDERS: usize = 32;
const NONE: u32 = u32::MAX;

/// State of a granule. If a free block begins at it: size of the block, and its neighbours in the list of that size.
#[derive(Clone, Copy)]
struct Granule {
    free_order: Option<u8>,
    next: u32,
    prev: u32,
}

pub(super) struct Extents {
    region: Arc<Region>,
    granules: Vec<Granule>,
    /// First free block of each size.
    free: [u32; ORDERS],
    used_bytes: usize,
}

fn order_for(len_bytes: usize) -> usize {
    len_bytes.div_ceil(GRANULE_BYTES).next_power_of_two().trailing_zeros() as usize
}

impl Extents {
    /// Creates an allocator with all of `region` free. The region has fewer than 2^32 granules.
    pub fn new(region: Arc<Region>) -> Self {
        let count = region.len_bytes() / GRANULE_BYTES;
        let granules = vec![Granule { free_order: None, next: NONE, prev: NONE }; count];
        let mut extents = Self { region, granules, free: [NONE; ORDERS], used_bytes: 0 };
        let mut at = 0;
        while at < count {
            let left = (count - at).ilog2();
            let order = if at == 0 { left } else { left.min(at.trailing_zeros()) };
            extents.push(at as u32, order as usize);
            at += 1 << order;
        }
        extents
    }

    /// Returns the memory in use, rounded to blocks.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Allocates a block and returns its first granule.
    pub fn alloc(&mut self, len_bytes: usize) -> Option<u32> {
        let order = order_for(len_bytes);
        let found = (order..ORDERS).find(|order| self.free[*order] != NONE)?;
        let block = self.free[found];
        self.unlink(block, found);
        for half in (order..found).rev() {
            self.push(block + (1 << half), half);
        }
        self.used_bytes += GRANULE_BYTES << order;
        Some(block)
    }

    /// Frees a block that was allocated for `len_bytes`.
    pub fn free(&mut self, granule: u32, len_bytes: usize) {
        let (mut block, mut order) = (granule, order_for(len_bytes));
        self.used_bytes -= GRANULE_BYTES << order;
        while order + 1 < ORDERS {
            let buddy = block ^ (1 << order);
            let is_free =
                self.granules.get(buddy as usize).is_some_and(|it| it.free_order == Some(order as u8));
            if !is_free {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    fn push(&mut self, block: u32, order: usize) {
        let next = std::mem::replace(&mut self.free[order], block);
        self.granules[block as usize] = Granule { free_order: Some(order as u8), next, prev: NONE };
        if next != NONE {
            self.granules[next as usize].prev = block;
        }
    }

    fn unlink(&mut self, block: u32, order: usize) {
        let Granule { next, prev, .. } = self.granules[block as usize];
        self.granules[block as usize].free_order = None;
        match prev {
            NONE => self.free[order] = next,
            prev => self.granules[prev as usize].next = next,
        }
        if next != NONE {
            self.granules[next as usize].prev = prev;
        }
    }

    /// Writes an extent, which no entry names yet.
    pub fn write(&self, granule: u32, bytes: &[u8]) {
        self.region.copy_in(granule as usize * GRANULE_BYTES, bytes);
    }

    /// Appends the contents of an extent to `out`.
    pub fn append_to(&self, granule: u32, len_bytes: u32, out: &mut Vec<u8>) {
        self.region.append_to(granule as usize * GRANULE_BYTES, len_bytes as usize, out);
    }
}

/// Encodes key and value as stored in an extent or after an entry.
pub(super) fn encode_pair(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(key.len() as u8);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Decodes key and value from an extent, an entry, or a PUT request.
pub(super) fn decode_pair(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key_len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*key_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bypass::store::tests::region;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn blocks_do_not_overlap_and_free_ones_are_joined(
            granules in 1_usize..200,
            steps in prop::collection::vec((any::<bool>(), 1_usize..1_000), 1..300),
        ) {
            let mut extents = Extents::new(region(granules * GRANULE_BYTES));
            let mut empty = vec![];
            while let Some(block) = extents.alloc(1) {
                empty.push(block);
            }
            empty.sort_unstable();
            prop_assert_eq!(&empty, &(0..extents.granules.len() as u32).collect::<Vec<_>>(), "all are given");
            empty.into_iter().for_each(|block| extents.free(block, 1));
            let whole = extents.free;
            let mut taken: Vec<(u32, usize)> = Vec::new();
            for (is_alloc, number) in steps {
                if is_alloc {
                    taken.extend(extents.alloc(number).map(|block| (block, number)));
                } else if !taken.is_empty() {
                    let (block, len_bytes) = taken.swap_remove(number % taken.len());
                    extents.free(block, len_bytes);
                }
                let mut ranges: Vec<_> =
                    taken.iter().map(|(block, len)| (*block, *block + (1 << order_for(*len)))).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
                prop_assert!(ranges.last().is_none_or(|last| last.1 as usize <= extents.granules.len()));
            }
            taken.drain(..).for_each(|(block, len_bytes)| extents.free(block, len_bytes));
            prop_assert_eq!(extents.used_bytes(), 0);
            prop_assert_eq!(extents.free, whole, "the largest blocks are there again");
        }
    }
}
