//! Writes of the volume metadata: their maximum length, and what waits for them.

/// Length in bytes of the chunks in which metadata is sent to a node.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Action when a metadata write is committed.
#[derive(Clone, Copy, Debug)]
pub(super) enum OnCommit {
    /// The operation may store its page when all writes of its intent are committed.
    Intent { operation: u32 },
    /// The run may store its pages when all writes of its intent are committed.
    Run { run: u32 },
    /// A chunk of a placement is committed.
    Placement,
    /// A chunk of a user metadata write is committed.
    User { token: u64 },
}
