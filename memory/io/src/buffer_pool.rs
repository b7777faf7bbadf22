//! Allocator of ranges in a pool of registered memory. It manages offsets only; the caller owns the memory.

/// First-fit allocator. Adjacent free ranges are merged, so a pool whose ranges have all been returned can be allocated
/// as one range again.
#[derive(Clone, Debug)]
pub struct BufferPool {
    /// Free ranges as (start, end), sorted; no two of them are adjacent.
    free: Vec<(usize, usize)>,
    len_bytes: usize,
}

/// A range allocated from a [`BufferPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PoolSlice {
    /// Offset of its first byte.
    pub offset: usize,
    /// Length in bytes; 0 if no memory was requested.
    pub len_bytes: usize,
}

/// Alignment and granularity of ranges in bytes: a cache line.
const ALIGN_BYTES: usize = 64;

impl BufferPool {
    /// Creates a pool of `len_bytes` bytes, rounded down to a multiple of the cache line.
    pub fn new(len_bytes: usize) -> Self {
        let len_bytes = len_bytes / ALIGN_BYTES * ALIGN_BYTES;
        let free = if len_bytes > 0 { vec![(0, len_bytes)] } else { Vec::new() };
        Self { free, len_bytes }
    }

    /// Returns the size of the pool in bytes, allocated or not.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Allocates a range of at least `len_bytes` bytes. Returns an empty range if `len_bytes` is 0, and `None` if no
    /// free range is long enough.
    pub fn allocate(&mut self, len_bytes: usize) -> Option<PoolSlice> {
        let len_bytes = len_bytes.checked_next_multiple_of(ALIGN_BYTES)?;
        if len_bytes == 0 {
            return Some(PoolSlice::default());
        }
        let at = self.free.iter().position(|(start, end)| end - start >= len_bytes)?;
        let (start, end) = &mut self.free[at];
        let slice = PoolSlice { offset: *start, len_bytes };
        *start += len_bytes;
        if start == end {
            self.free.remove(at);
        }
        Some(slice)
    }

    /// Frees a range.
    ///
    /// # Panics
    /// If the range is not allocated: an error of the caller.
    pub fn free_slice(&mut self, slice: PoolSlice) {
        if slice.len_bytes == 0 {
            return;
        }
        let (start, end) = (slice.offset, slice.offset + slice.len_bytes);
        let at = self.free.partition_point(|free| free.0 < start);
        let before = at.checked_sub(1).map(|before| self.free[before].1);
        let after = self.free.get(at).map(|free| free.0);
        let is_out = before.is_none_or(|before| before <= start) && after.is_none_or(|after| end <= after);
        assert!(is_out && end <= self.len_bytes, "a piece that is not given out");
        match (before == Some(start), after == Some(end)) {
            (true, true) => self.free[at - 1].1 = self.free.remove(at).1,
            (true, false) => self.free[at - 1].1 = end,
            (false, true) => self.free[at].0 = start,
            (false, false) => self.free.insert(at, (start, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn allocates_disjoint_slices_and_recovers_all_space(
            steps in prop::collection::vec((1..3000_usize, any::<u8>()), 1..80)
        ) {
            let mut pool = BufferPool::new(16 << 10);
            let mut out: Vec<PoolSlice> = Vec::new();
            for (len, choice) in steps {
                if choice % 2 == 0 && !out.is_empty() {
                    pool.free_slice(out.swap_remove(usize::from(choice) % out.len()));
                } else if let Some(slice) = pool.allocate(len) {
                    prop_assert!(slice.len_bytes >= len && slice.offset % ALIGN_BYTES == 0);
                    prop_assert!(slice.offset + slice.len_bytes <= pool.len_bytes());
                    let end = |slice: &PoolSlice| slice.offset + slice.len_bytes;
                    prop_assert!(out.iter().all(|other| end(other) <= slice.offset || end(&slice) <= other.offset));
                    out.push(slice);
                }
            }
            out.into_iter().for_each(|slice| pool.free_slice(slice));
            prop_assert_eq!(pool.allocate(16 << 10), Some(PoolSlice { offset: 0, len_bytes: 16 << 10 }));
        }
    }

    #[test]
    #[should_panic(expected = "not given out")]
    fn rejects_freeing_a_slice_twice() {
        let mut pool = BufferPool::new(1024);
        let slice = pool.allocate(100).unwrap();
        pool.free_slice(slice);
        pool.free_slice(slice);
    }

    #[test]
    fn allocates_nothing_from_an_empty_pool() {
        let mut pool = BufferPool::new(63);
        assert_eq!((pool.allocate(1), pool.allocate(0)), (None, Some(PoolSlice::default())));
        pool.free_slice(PoolSlice::default());
    }
}
