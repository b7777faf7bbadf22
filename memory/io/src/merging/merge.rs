//! Which requests become one work request: those adjacent in remote memory (RDMAbox, algorithm 2).

use std::ops::Range;

use super::{Direction, Memory, Request, Span};
use crate::pieces::Piece;

/// How requests are put together; the rows of the paper's table I.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combining {
    /// A work request and a doorbell for each.
    Single,
    /// A work request for each; several behind one doorbell.
    Doorbell,
    /// Adjacent requests are one work request; each has its doorbell.
    Merge,
    /// Both: what the paper calls hybrid, and uses.
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

/// What one work request can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    /// Gather/scatter elements.
    pub elements: usize,
    /// Bytes; one request may be longer.
    pub bytes: u64,
    /// Bytes of the pool.
    pub pool_bytes: u64,
}

/// A work request: what of remote memory it moves, and for which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which way.
    pub direction: Direction,
    /// All its requests' ranges, one after another.
    pub span: Span,
    /// Its requests among [`Doorbell::members`](super::Doorbell::members), by rising address.
    pub members: Range<usize>,
    /// Its part of the pool: one after another, the bytes of its requests that are copied.
    pub piece: Piece,
}

/// A request that may be posted now, and its place among all that wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub place: usize,
    pub request: Request,
}

/// Candidates that become one work request.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Which candidates, as they are sorted.
    pub candidates: Range<usize>,
    pub direction: Direction,
    pub span: Span,
    pub pool_bytes: u64,
    /// The place of the one that has waited longest.
    pub place: usize,
    pub is_alone: bool,
    elements: usize,
    ends_in_pool: bool,
}

impl Group {
    fn of(at: usize, Candidate { place, request }: Candidate) -> Self {
        let ends_in_pool = request.memory == Memory::Pool;
        Self {
            candidates: at..at + 1,
            direction: request.direction,
            span: request.span,
            pool_bytes: if ends_in_pool { request.span.len_bytes() } else { 0 },
            place,
            is_alone: request.memory == Memory::Alone,
            elements: 1,
            ends_in_pool,
        }
    }

    /// Takes the next candidate in, if it is adjacent and there is room.
    fn join(&mut self, limits: &WorkLimits, Candidate { place, request }: Candidate) -> bool {
        let is_pool = request.memory == Memory::Pool;
        let len_bytes = request.span.len_bytes();
        // What is copied lies side by side in the pool, too.
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
            self.place = self.place.min(place);
        }
        joins
    }
}

/// Sorts candidates by address and puts what is adjacent into groups; the group with the oldest request comes first.
pub(crate) fn group(
    combining: Combining,
    limits: &WorkLimits,
    candidates: &mut [Candidate],
    groups: &mut Vec<Group>,
) {
    groups.clear();
    if combining.merges() {
        candidates.sort_unstable_by_key(|Candidate { place, request }| {
            (request.direction, request.span.region, request.span.start, *place)
        });
    }
    for (at, candidate) in candidates.iter().enumerate() {
        let joined =
            combining.merges() && groups.last_mut().is_some_and(|last| last.join(limits, *candidate));
        if !joined {
            groups.push(Group::of(at, *candidate));
        }
    }
    groups.sort_unstable_by_key(|group| group.place);
}
