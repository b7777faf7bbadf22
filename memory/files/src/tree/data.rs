//! The data of files: the loads and stores of operations, and their effect on the file after success or failure.
//!
//! Between a plan and its end no other operation may read or change the data of the same file; the caller ensures that
//! with a lock per file. Blocks removed from a file are therefore not being read, and can be reused immediately.

use std::ops::Range;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::blocks::Blocks;
use super::extents::Run;
use super::{Attributes, BLOCK_BYTES, Result, Time, Tree};

/// Maximum length of a file in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Bytes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Offset in the address space; `None` if the bytes are zero.
    pub at: Option<u64>,
    /// Number of bytes.
    pub len_bytes: usize,
}

/// Bytes to write at one offset: zeros, bytes of the caller, zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Offset in the address space.
    pub at: u64,
    /// Number of zeros before the data.
    pub zeros_before: usize,
    /// Range of the caller's bytes.
    pub data: Range<usize>,
    /// Number of zeros after the data.
    pub zeros_after: usize,
}

/// The stores of a write. It must be ended with [`Tree::finish_write`] in any case.
#[derive(Debug)]
#[must_use]
pub struct WritePlan {
    /// Stores, to be executed in any order.
    pub stores: Vec<Store>,
    ino: u64,
    /// Blocks allocated for holes, which become part of the file if all stores succeed.
    fresh: Vec<(u64, Blocks)>,
    /// Reserved blocks that are written.
    reserved: Vec<Range<u64>>,
    /// Minimum length of the file after success, in bytes.
    end: u64,
    /// Whether the last block contains other bytes than zeros after the end of the file, after success; `None` if
    /// unchanged.
    is_tail_dirty: Option<bool>,
}

impl WritePlan {
    /// Returns whether a store changes blocks of which a tree without this plan expects other contents: blocks that
    /// another file may have had, or bytes after the end of the file.
    pub(crate) const fn must_sync_first(&self) -> bool {
        !self.fresh.is_empty() || !self.reserved.is_empty() || self.is_tail_dirty.is_some()
    }
}

/// Operation of `fallocate` on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Allocate {
    /// Reserves blocks.
    Reserve,
    /// Makes the range a hole.
    Punch,
    /// Makes the range read as zeros, with reserved blocks.
    Zero,
}

const fn block_of(offset: u64) -> u64 {
    offset / BLOCK_BYTES
}

/// Returns the blocks that contain a range. `blocks_inside` returns those that lie completely inside it.
const fn blocks_around(range: &Range<u64>) -> Range<u64> {
    block_of(range.start)..range.end.div_ceil(BLOCK_BYTES)
}

const fn blocks_inside(range: &Range<u64>) -> Range<u64> {
    range.start.div_ceil(BLOCK_BYTES)..block_of(range.end)
}

fn range_of(offset: u64, len_bytes: u64) -> Result<Range<u64>> {
    let end = offset.checked_add(len_bytes).filter(|end| *end <= FILE_BYTES_MAX);
    Ok(offset..end.ok_or(Errno::FBIG)?)
}

impl Tree {
    /// Returns the loads of a read: the part of the range before the end of the file.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EINVAL`.
    pub fn plan_read(&self, ino: u64, offset: u64, len_bytes: usize) -> Result<Vec<Load>> {
        let file = self.file(ino)?;
        let end = file.len_bytes.min(offset.saturating_add(len_bytes as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let range = offset..end;
        let load = |(blocks, run): (Range<u64>, Option<Run>)| {
            let from = range.start.max(blocks.start * BLOCK_BYTES);
            let to = range.end.min(blocks.end * BLOCK_BYTES);
            let stored = run.filter(|run| run.is_stored);
            let at = stored.map(|run| run.blocks.start * BLOCK_BYTES + (from - blocks.start * BLOCK_BYTES));
            Load { at, len_bytes: (to - from) as usize }
        };
        Ok(file.extents.segments(blocks_around(&range)).map(load).collect())
    }

    /// Updates the access time after a read like `relatime`: once a day, or after a change. Returns whether it was
    /// updated.
    pub fn accessed(&mut self, ino: u64, now: Time) -> bool {
        const DAY_SECONDS: i64 = 86_400;
        let Ok(inode) = self.get_mut(ino) else { return false };
        let Time { seconds, .. } = inode.atime;
        let is_kept = inode.atime <= inode.mtime.max(inode.ctime) || now.seconds - seconds >= DAY_SECONDS;
        if is_kept {
            inode.atime = now;
        }
        is_kept
    }

    /// Returns the stores of a write. A block that the file does not have yet is stored completely, with zeros around
    /// the data.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EINVAL`, `EFBIG`, `ENOSPC`; the tree is unchanged then.
    pub fn plan_write(&mut self, ino: u64, offset: u64, len_bytes: usize) -> Result<WritePlan> {
        let range = range_of(offset, len_bytes as u64)?;
        let mut plan = self.plan_tail(ino, &range)?;
        let file = self.file(ino)?;
        let blocks = if len_bytes == 0 { 0..0 } else { blocks_around(&range) };
        let mut holes = Vec::new();
        for (segment, run) in file.extents.segments(blocks) {
            match run {
                Some(run) if run.is_stored => plan.stores.push(exact(&range, &segment, run.blocks)),
                Some(run) => {
                    plan.stores.push(padded(&range, &segment, run.blocks));
                    plan.reserved.push(segment);
                }
                None => holes.push(segment),
            }
        }
        for hole in holes {
            let taken = self.allocate_hole(ino, &hole).inspect_err(|_| self.free_new_blocks(&plan))?;
            for (at, blocks) in taken {
                plan.stores.push(padded(&range, &(at..at + blocks.len), blocks));
                plan.fresh.push((at, blocks));
            }
        }
        if plan.is_tail_dirty.is_some() {
            // Until the plan has succeeded, any part of that may have been written.
            self.file_mut(ino)?.is_tail_dirty = true;
        }
        Ok(plan)
    }

    /// Returns the stores that must precede a move of the end of the file past `range`: zeros over the bytes between.
    fn plan_tail(&self, ino: u64, range: &Range<u64>) -> Result<WritePlan> {
        let file = self.file(ino)?;
        let mut plan = WritePlan {
            stores: Vec::new(),
            ino,
            fresh: Vec::new(),
            reserved: Vec::new(),
            end: range.end,
            is_tail_dirty: None,
        };
        let (size, tail_end) = (file.len_bytes, file.len_bytes.next_multiple_of(BLOCK_BYTES));
        let tail = file.extents.stored(block_of(size)).filter(|_| size < tail_end);
        let Some(tail) = tail.filter(|_| range.end > size) else { return Ok(plan) };
        let to = range.start.min(tail_end);
        if file.is_tail_dirty && to > size {
            let at = tail * BLOCK_BYTES + size % BLOCK_BYTES;
            plan.stores.push(Store { at, zeros_before: (to - size) as usize, data: 0..0, zeros_after: 0 });
        }
        plan.is_tail_dirty = Some(file.is_tail_dirty && range.end < tail_end);
        Ok(plan)
    }

    /// Allocates blocks for a hole.
    fn allocate_hole(&mut self, ino: u64, hole: &Range<u64>) -> Result<Vec<(u64, Blocks)>> {
        let mut near = self.file(ino)?.extents.near(hole.start);
        let (mut taken, mut at) = (Vec::new(), hole.start);
        while at < hole.end {
            let Some(blocks) = self.free.allocate(hole.end - at, near) else {
                taken.into_iter().for_each(|(_, blocks)| self.free.release(blocks));
                return Err(Errno::NOSPC);
            };
            taken.push((at, blocks));
            at += blocks.len;
            near = Some(blocks.start + blocks.len);
        }
        Ok(taken)
    }

    fn free_new_blocks(&mut self, plan: &WritePlan) {
        plan.fresh.iter().for_each(|(_, blocks)| self.free.release(*blocks));
    }

    /// Ends a write. If all stores succeeded, it takes effect. Otherwise length and holes of the file are unchanged,
    /// and each overwritten byte has its old or its new value.
    ///
    /// # Errors
    /// `ENOENT` if the file no longer exists.
    pub fn finish_write(&mut self, plan: WritePlan, is_stored: bool, now: Time) -> Result<Attributes> {
        let ino = plan.ino;
        if !is_stored || self.file(ino).is_err() {
            self.free_new_blocks(&plan);
            return self.attributes(ino);
        }
        let file = self.file_mut(ino)?;
        for range in plan.reserved {
            let mut at = range.start;
            let mut reserved: Vec<(u64, Blocks)> = Vec::new();
            for (segment, run) in file.extents.segments(range.clone()) {
                reserved.extend(run.map(|run| (segment.start, run.blocks)));
                at = segment.end;
            }
            debug_assert_eq!(at, range.end, "no other thread changes the file in the meantime");
            drop(file.extents.remove(range));
            for (at, blocks) in reserved {
                file.extents.insert(at, Run { blocks, is_stored: true });
            }
        }
        for (at, blocks) in plan.fresh {
            file.extents.insert(at, Run { blocks, is_stored: true });
        }
        file.len_bytes = file.len_bytes.max(plan.end);
        file.is_tail_dirty = plan.is_tail_dirty.unwrap_or(file.is_tail_dirty);
        let inode = self.get_mut(ino)?;
        (inode.mtime, inode.ctime) = (now, now);
        Ok(inode.attributes(ino))
    }

    /// Changes the length of a file. Shortening takes effect immediately, and its plan has no stores.
    ///
    /// # Errors
    /// Returns the errors of [`Tree::plan_write`].
    pub fn plan_resize(&mut self, ino: u64, len_bytes: u64) -> Result<WritePlan> {
        let file = self.file_mut(ino)?;
        if len_bytes < file.len_bytes {
            let kept_blocks = len_bytes.div_ceil(BLOCK_BYTES);
            let removed = file.extents.remove(kept_blocks..u64::MAX);
            file.len_bytes = len_bytes;
            file.is_tail_dirty = !len_bytes.is_multiple_of(BLOCK_BYTES);
            removed.into_iter().for_each(|blocks| self.free.release(blocks));
        }
        self.plan_write(ino, len_bytes, 0)
    }

    /// Executes `fallocate`: changes the extents immediately, and returns the required stores.
    ///
    /// # Errors
    /// Returns the errors of [`Tree::plan_write`].
    pub(crate) fn plan_allocate(
        &mut self,
        ino: u64,
        offset: u64,
        len_bytes: u64,
        how: Allocate,
        keep_size: bool,
    ) -> Result<WritePlan> {
        let range = range_of(offset, len_bytes)?;
        if range.is_empty() {
            return Err(Errno::INVAL);
        }
        let grown = if keep_size { 0 } else { range.end };
        let mut plan = self.plan_write(ino, grown, 0)?;
        if how != Allocate::Reserve {
            plan.stores.extend(self.file(ino)?.edges(&range));
            let inside = blocks_inside(&range);
            // The blocks completely inside the range are freed.
            let file = self.file_mut(ino)?;
            let removed = if inside.is_empty() { Vec::new() } else { file.extents.remove(inside) };
            removed.into_iter().for_each(|blocks| self.free.release(blocks));
        }
        if how != Allocate::Punch {
            self.reserve(ino, &range)?;
        }
        Ok(plan)
    }

    /// Reserves blocks for all holes of a range.
    fn reserve(&mut self, ino: u64, range: &Range<u64>) -> Result<()> {
        let segments = self.file(ino)?.extents.segments(blocks_around(range));
        let holes: Vec<Range<u64>> =
            segments.filter(|(_, run)| run.is_none()).map(|(hole, _)| hole).collect();
        if holes.iter().map(|hole| hole.end - hole.start).sum::<u64>() > self.free.free() {
            return Err(Errno::NOSPC);
        }
        for hole in holes {
            let taken = self.allocate_hole(ino, &hole)?;
            let file = self.file_mut(ino)?;
            for (at, blocks) in taken {
                file.extents.insert(at, Run { blocks, is_stored: false });
            }
        }
        Ok(())
    }

    /// Returns the offset of the next data or the next hole, at or after `offset`.
    ///
    /// # Errors
    /// `ENXIO` if there is none.
    pub(crate) fn seek(&self, ino: u64, offset: u64, for_data: bool) -> Result<u64> {
        let file = self.file(ino)?;
        if offset >= file.len_bytes {
            return Err(Errno::NXIO);
        }
        let found = file
            .extents
            .segments(blocks_around(&(offset..file.len_bytes)))
            .find(|(_, run)| run.is_some_and(|run| run.is_stored) == for_data)
            .map(|(segment, _)| offset.max(segment.start * BLOCK_BYTES));
        match found {
            Some(at) => Ok(at),
            // The end of the file counts as a hole.
            None if !for_data => Ok(file.len_bytes),
            None => Err(Errno::NXIO),
        }
    }
}

impl super::File {
    /// Returns stores of zeros over the bytes of a range that share a block with bytes outside it.
    fn edges(&self, range: &Range<u64>) -> Vec<Store> {
        let first = range.start..range.end.min(range.start.next_multiple_of(BLOCK_BYTES));
        let last = first.end.max(range.end / BLOCK_BYTES * BLOCK_BYTES)..range.end;
        let edges = [first, last].into_iter().filter(|edge| !edge.is_empty());
        let zeros = |edge: Range<u64>| {
            let at = self.extents.stored(block_of(edge.start))?;
            let len_bytes = (edge.end - edge.start) as usize;
            let at = at * BLOCK_BYTES + edge.start % BLOCK_BYTES;
            Some(Store { at, zeros_before: len_bytes, data: 0..0, zeros_after: 0 })
        };
        edges.filter_map(zeros).collect()
    }
}

/// Returns the part of a write that lies in a segment of the file: its offset in the segment, its range in the data,
/// and the number of bytes after it in the segment.
fn part(range: &Range<u64>, segment: &Range<u64>) -> (u64, Range<usize>, u64) {
    let from = range.start.max(segment.start * BLOCK_BYTES);
    let to = range.end.min(segment.end * BLOCK_BYTES);
    let data = (from - range.start) as usize..(to - range.start) as usize;
    (from - segment.start * BLOCK_BYTES, data, segment.end * BLOCK_BYTES - to)
}

/// Returns a store over existing data.
fn exact(range: &Range<u64>, segment: &Range<u64>, blocks: Blocks) -> Store {
    let (before, data, _) = part(range, segment);
    Store { at: blocks.start * BLOCK_BYTES + before, zeros_before: 0, data, zeros_after: 0 }
}

/// Returns a store of complete blocks, regardless of their earlier contents.
fn padded(range: &Range<u64>, segment: &Range<u64>, blocks: Blocks) -> Store {
    let (before, data, after) = part(range, segment);
    Store { at: blocks.start * BLOCK_BYTES, zeros_before: before as usize, data, zeros_after: after as usize }
}
