//! What is asked for: a range of remote memory, and whether it is read or written.

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From remote memory to here: a READ.
    Read,
    /// From here to remote memory: a WRITE.
    Write,
}

/// A range of remote memory; never empty, and its end does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which memory: what is in two of them is never adjacent and never overlaps.
    pub region: u32,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Span {
    /// The range of `len_bytes` at `start`; `None` if it is empty or its end overflows.
    pub const fn new(region: u32, start: u64, len_bytes: u64) -> Option<Self> {
        match start.checked_add(len_bytes) {
            Some(end) if len_bytes > 0 => Some(Self { region, start, end }),
            _ => None,
        }
    }

    /// Its length.
    pub const fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether they have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.region == other.region && self.start < other.end && other.start < self.end
    }

    /// Whether `next` begins where this ends.
    pub const fn is_followed_by(&self, next: &Self) -> bool {
        self.region == next.region && self.end == next.start
    }
}

/// What local memory a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A part of the registered pool (preMR): its bytes are copied there, or from there.
    Pool,
    /// None: its memory is registered, and takes a gather/scatter element.
    Registered,
    /// None: its memory is registered when it is posted (dynMR). It goes alone: next to what that costs, and to what so
    /// many bytes take, merging and chaining save nothing.
    Alone,
}

/// A request to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What its owner calls it.
    pub id: u32,
    /// Which way.
    pub direction: Direction,
    /// What of the remote memory.
    pub span: Span,
    /// What of the local memory.
    pub memory: Memory,
}
