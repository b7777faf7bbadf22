//! Mapping of the blocks of a file to blocks of the address space.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::blocks::Blocks;

/// A part of a file that is contiguous in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub blocks: Blocks,
    /// `true` if all of it was stored. Otherwise it is a reservation, which reads as zeros regardless of the blocks'
    /// contents.
    pub is_stored: bool,
}

/// The runs of a file by their first block in the file. Blocks in no run are holes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Extents {
    runs: BTreeMap<u64, Run>,
    count: u64,
}

impl Extents {
    /// Returns the number of blocks of the file.
    pub const fn count(&self) -> u64 {
        self.count
    }

    pub fn runs(&self) -> impl Iterator<Item = (u64, Run)> {
        self.runs.iter().map(|(at, run)| (*at, *run))
    }

    /// Returns the segments of a range of blocks in ascending order: the range in the file, and its run (`None` for a
    /// hole).
    pub fn segments(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<Run>)> {
        let first = self.runs.range(..=range.start).next_back();
        let later =
            self.runs.range(range.start.saturating_add(1)..range.end.max(range.start.saturating_add(1)));
        let mut runs =
            first.into_iter().chain(later).filter(move |(at, run)| *at + run.blocks.len > range.start);
        let mut waiting = runs.next();
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let from = at;
            match waiting {
                Some((start, run)) if *start <= at => {
                    at = (*start + run.blocks.len).min(range.end);
                    let blocks = Blocks { start: run.blocks.start + (from - *start), len: at - from };
                    waiting = runs.next();
                    Some((from..at, Some(Run { blocks, is_stored: run.is_stored })))
                }
                Some((start, _)) => {
                    at = (*start).min(range.end);
                    Some((from..at, None))
                }
                None => {
                    at = range.end;
                    Some((from..at, None))
                }
            }
        })
    }

    /// Returns the position of a block in the address space, if it was stored.
    pub fn stored(&self, block: u64) -> Option<u64> {
        let run = self.segments(block..block + 1).next()?.1?;
        run.is_stored.then_some(run.blocks.start)
    }

    /// Returns the preferred position of `block` in the address space: contiguous with the run before it.
    pub fn near(&self, block: u64) -> Option<u64> {
        let (at, run) = self.runs.range(..block).next_back()?;
        Some(run.blocks.start + (block - at))
    }

    /// Removes a range. Returns its blocks.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Blocks> {
        let mut removed = Vec::new();
        loop {
            let inside = self.runs.range(..range.end).next_back().map(|(at, run)| (*at, *run));
            let Some((at, run)) =
                inside.filter(|(at, run)| at + run.blocks.len > range.start && !range.is_empty())
            else {
                return removed;
            };
            self.runs.remove(&at);
            let (from, to) = (at.max(range.start), (at + run.blocks.len).min(range.end));
            let part = |from: u64, to: u64| Run {
                blocks: Blocks { start: run.blocks.start + (from - at), len: to - from },
                is_stored: run.is_stored,
            };
            if at < from {
                self.runs.insert(at, part(at, from));
            }
            if to < at + run.blocks.len {
                self.runs.insert(to, part(to, at + run.blocks.len));
            }
            removed.push(part(from, to).blocks);
            self.count -= to - from;
        }
    }

    /// Inserts a run where there is a hole.
    pub fn insert(&mut self, mut at: u64, mut run: Run) {
        self.count += run.blocks.len;
        let joins = |first_at: u64, first: &Run, next_at: u64, next: &Run| {
            first.is_stored == next.is_stored
                && first_at + first.blocks.len == next_at
                && first.blocks.start + first.blocks.len == next.blocks.start
        };
        if let Some((before_at, before)) = self.runs.range(..at).next_back().map(|(at, run)| (*at, *run))
            && joins(before_at, &before, at, &run)
        {
            self.runs.remove(&before_at);
            at = before_at;
            run.blocks = Blocks { start: before.blocks.start, len: before.blocks.len + run.blocks.len };
        }
        if let Some((after_at, after)) = self.runs.range(at + 1..).next().map(|(at, run)| (*at, *run))
            && joins(at, &run, after_at, &after)
        {
            self.runs.remove(&after_at);
            run.blocks.len += after.blocks.len;
        }
        self.runs.insert(at, run);
    }
}
