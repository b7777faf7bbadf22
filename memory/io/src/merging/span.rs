//! Requests: a range of remote memory, the direction, and the kind of local memory.

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From remote to local memory: a READ.
    Read,
    /// From local to remote memory: a WRITE.
    Write,
}

/// A range of remote memory. Invariant: it is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Number of the grant. Ranges of different grants are never adjacent and never overlap.
    pub region: u32,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Span {
    /// Creates the range of `len_bytes` at `start`. Returns `None` if it is empty or its end overflows.
    pub const fn new(region: u32, start: u64, len_bytes: u64) -> Option<Self> {
        match start.checked_add(len_bytes) {
            Some(end) if len_bytes > 0 => Some(Self { region, start, end }),
            _ => None,
        }
    }

    /// Returns the length in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the ranges have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.region == other.region && self.start < other.end && other.start < self.end
    }

    /// Returns whether `next` begins at the end of this range.
    pub const fn is_followed_by(&self, next: &Self) -> bool {
        self.region == next.region && self.end == next.start
    }
}

/// Kind of local memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Copied through a range of the registered pool (preMR).
    Pool,
    /// Registered memory, which needs a scatter/gather element of its own.
    Registered,
    /// Registered when the request is posted (dynMR). Such a request is posted alone: compared with the cost of the
    /// registration and of the transfer, merging and chaining save nothing.
    Alone,
}

/// A request to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the request at the caller.
    pub id: u32,
    /// Whether the range is read or written.
    pub direction: Direction,
    /// Range of remote memory.
    pub span: Span,
    /// Kind of local memory.
    pub memory: Memory,
}
