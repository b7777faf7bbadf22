//! Allocation of the blocks of the address space.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Adjacent blocks of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The first block.
    pub start: u64,
    /// Number of blocks.
    pub len: u64,
}

/// The free blocks.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    /// Length of each free run by its start. Invariant: no two runs are adjacent.
    runs: BTreeMap<u64, u64>,
    free: u64,
    /// Block from which the next search begins.
    cursor: u64,
}

impl FreeBlocks {
    /// Creates `count` free blocks.
    pub fn new(count: u64) -> Self {
        let runs = if count > 0 { BTreeMap::from([(0, count)]) } else { BTreeMap::new() };
        Self { runs, free: count, cursor: 0 }
    }

    pub const fn free(&self) -> u64 {
        self.free
    }

    /// Returns the block from which the next search begins. It is part of a checkpoint, so that a restored tree
    /// allocates the same blocks.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    pub const fn set_cursor(&mut self, cursor: u64) {
        self.cursor = cursor;
    }

    /// Allocates up to `want` adjacent blocks, at `near` if that is free, so that a growing file stays contiguous.
    pub fn allocate(&mut self, want: u64, near: Option<u64>) -> Option<Blocks> {
        let at_near = near.and_then(|near| {
            let (start, len) = self.runs.range(..=near).next_back()?;
            (near < start + len).then(|| (near, start + len - near))
        });
        let (start, len) = at_near.or_else(|| self.next_run())?;
        let taken = Blocks { start, len: len.min(want) };
        self.cut(taken);
        if at_near.is_none() {
            self.cursor = taken.start + taken.len;
        }
        Some(taken)
    }

    fn next_run(&self) -> Option<(u64, u64)> {
        let next = self.runs.range(self.cursor..).next().or_else(|| self.runs.iter().next());
        next.map(|(start, len)| (*start, *len))
    }

    /// Allocates exactly these blocks. Returns `false` if not all of them are free.
    pub fn allocate_exactly(&mut self, blocks: Blocks) -> bool {
        let run = self.runs.range(..=blocks.start).next_back().map(|(start, len)| (*start, *len));
        let end = blocks.start.checked_add(blocks.len);
        let is_free = blocks.len > 0 && run.zip(end).is_some_and(|((start, len), end)| end <= start + len);
        if is_free {
            self.cut(blocks);
        }
        is_free
    }

    /// Removes blocks that are inside one free run.
    fn cut(&mut self, blocks: Blocks) {
        let Some((start, len)) =
            self.runs.range(..=blocks.start).next_back().map(|(start, len)| (*start, *len))
        else {
            return;
        };
        self.runs.remove(&start);
        let (end, run_end) = (blocks.start + blocks.len, start + len);
        if start < blocks.start {
            self.runs.insert(start, blocks.start - start);
        }
        if end < run_end {
            self.runs.insert(end, run_end - end);
        }
        self.free -= blocks.len;
    }

    /// Frees blocks.
    pub fn release(&mut self, blocks: Blocks) {
        let Blocks { mut start, mut len } = blocks;
        self.free += len;
        if let Some((before, before_len)) = self.runs.range(..start).next_back().map(|(at, len)| (*at, *len))
        {
            assert!(before + before_len <= start, "blocks at {start} were freed twice");
            if before + before_len == start {
                self.runs.remove(&before);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some((after, after_len)) = self.runs.range(start..).next().map(|(at, len)| (*at, *len)) {
            assert!(start + len <= after, "blocks at {after} were freed twice");
            if start + len == after {
                self.runs.remove(&after);
                len += after_len;
            }
        }
        self.runs.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocates_blocks_once_and_merges_free_runs() {
        let mut free = FreeBlocks::new(10);
        let first = free.allocate(4, None).unwrap();
        let second = free.allocate(4, Some(first.start + first.len)).unwrap();
        assert_eq!((first.start, second.start), (0, 4));
        assert_eq!(free.allocate(4, None), Some(Blocks { start: 8, len: 2 }));
        assert_eq!((free.allocate(1, Some(3)), free.free()), (None, 0));
        free.release(first);
        free.release(Blocks { start: 8, len: 2 });
        free.release(second);
        assert!(free.allocate_exactly(Blocks { start: 3, len: 5 }));
        assert!(!free.allocate_exactly(Blocks { start: 7, len: 2 }));
        assert!(!free.allocate_exactly(Blocks { start: u64::MAX, len: 2 }));
        free.release(Blocks { start: 3, len: 5 });
        assert_eq!(free.allocate(20, None), Some(Blocks { start: 0, len: 10 }));
    }
}
