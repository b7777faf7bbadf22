//! Merging of requests that are adjacent in remote memory into one work request (RDMAbox, algorithm 2).

use std::ops::Range;

use super::{Direction, Memory, Request, Span};
use crate::buffer_pool::PoolSlice;

/// How requests are combined: the rows of the paper's table I.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combining {
    /// One work request and one doorbell per request.
    Single,
    /// One work request per request; several are posted with one doorbell.
    Doorbell,
    /// Adjacent requests become one work request; one doorbell per work request.
    Merge,
    /// Both; the paper calls this hybrid, and uses it.
    MergeAndChain,
}

impl Combining {
    pub(crate) const fn merges(self) -> bool {
        matches!(self, Self::Merge | Self::MergeAndChain)
    }

    pub(crate) const fn chains(self) -> bool {
        matches!(self, Self::Doorbell | Self::MergeAndChain)
    }
}

/// Limits of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    /// Maximum number of scatter/gather elements.
    pub elements: usize,
    /// Maximum length in bytes of a merged work request. A single request may be longer.
    pub bytes: u64,
    /// Maximum number of bytes of the pool.
    pub pool_bytes: u64,
}

/// A work request: its range of remote memory, and the requests that it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whether the range is read or written.
    pub direction: Direction,
    /// The contiguous ranges of its requests.
    pub span: Span,
    /// Indices of its requests in [`Doorbell::members`](super::Doorbell::members), in ascending order of address.
    pub members: Range<usize>,
    /// Its range of the pool, which contains the bytes of the copied requests, one after another.
    pub pool_slice: PoolSlice,
}

/// A request that may be posted now, and its position among the waiting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub position: usize,
    pub request: Request,
}

/// Candidates that form one work request.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Indices of the candidates in their sorted order.
    pub candidates: Range<usize>,
    pub direction: Direction,
    pub span: Span,
    pub pool_bytes: u64,
    /// Position of the request that has waited longest.
    pub position: usize,
    /// Whether it must be posted without others ([`Memory::Alone`]).
    pub is_alone: bool,
    /// Number of scatter/gather elements.
    elements: usize,
    /// Whether the last candidate is copied through the pool.
    ends_in_pool: bool,
}

impl Group {
    /// Creates the group of one candidate.
    fn new(at: usize, Candidate { position, request }: Candidate) -> Self {
        let ends_in_pool = request.memory == Memory::Pool;
        Self {
            candidates: at..at + 1,
            direction: request.direction,
            span: request.span,
            pool_bytes: if ends_in_pool { request.span.len_bytes() } else { 0 },
            position,
            is_alone: request.memory == Memory::Alone,
            elements: 1,
            ends_in_pool,
        }
    }

    /// Adds the next candidate if it is adjacent and the limits permit it. Returns whether it was added.
    fn try_add(&mut self, limits: &WorkLimits, Candidate { position, request }: Candidate) -> bool {
        let is_pool = request.memory == Memory::Pool;
        let len_bytes = request.span.len_bytes();
        // Consecutive copied requests are also contiguous in the pool, so they share an element.
        let elements = self.elements + usize::from(!(is_pool && self.ends_in_pool));
        let pool_bytes = self.pool_bytes + if is_pool { len_bytes } else { 0 };
        let joins = !self.is_alone
            && request.memory != Memory::Alone
            && request.direction == self.direction
            && self.span.is_followed_by(&request.span)
            && elements <= limits.elements
            && self.span.len_bytes() + len_bytes <= limits.bytes
            && pool_bytes <= limits.pool_bytes;
        if joins {
            self.candidates.end += 1;
            self.span.end = request.span.end;
            (self.pool_bytes, self.elements, self.ends_in_pool) = (pool_bytes, elements, is_pool);
            self.position = self.position.min(position);
        }
        joins
    }
}

/// Sorts the candidates by address, and groups adjacent ones. Groups are ordered by their oldest request.
pub(crate) fn group(
    combining: Combining,
    limits: &WorkLimits,
    candidates: &mut [Candidate],
    groups: &mut Vec<Group>,
) {
    groups.clear();
    if combining.merges() {
        candidates.sort_unstable_by_key(|Candidate { position, request }| {
            (request.direction, request.span.region, request.span.start, *position)
        });
    }
    for (at, candidate) in candidates.iter().enumerate() {
        let joined =
            combining.merges() && groups.last_mut().is_some_and(|last| last.try_add(limits, *candidate));
        if !joined {
            groups.push(Group::new(at, *candidate));
        }
    }
    groups.sort_unstable_by_key(|group| group.position);
}
