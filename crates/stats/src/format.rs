//! The layout of a statistics segment, version 1. Little-endian on every machine that writes one.
//!
//! ```text
//! 0      magic, version, pid, start time, used bytes (atomic), executable name
//! 4096   blocks, one after another: header, names, values, flight records
//! ```

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"farstat1");
pub(crate) const SEGMENT_BYTES: usize = 8 << 20;

pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_PID: usize = 8;
pub(crate) const AT_START: usize = 16;
/// Written last when a block is added, with release.
pub(crate) const AT_USED: usize = 24;
pub(crate) const AT_EXE: usize = 64;
pub(crate) const EXE_BYTES: usize = 256;
pub(crate) const FIRST_BLOCK: usize = 4096;

/// Block header: state, counter count, record count, next record, label.
pub(crate) const BLOCK_STATE: usize = 0;
pub(crate) const BLOCK_COUNTERS: usize = 8;
pub(crate) const BLOCK_RECORDS: usize = 16;
pub(crate) const BLOCK_NEXT: usize = 24;
pub(crate) const BLOCK_LABEL: usize = 32;
pub(crate) const LABEL_BYTES: usize = 96;
pub(crate) const BLOCK_HEADER: usize = 128;

pub(crate) const LIVE: u64 = 1;
pub(crate) const ENDED: u64 = 2;

pub(crate) const NAME_BYTES: usize = 32;
/// A flight record: nanoseconds since the process started to count, code, argument.
pub(crate) const RECORD_BYTES: usize = 24;

/// Offsets inside a block of `counters` and `records`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) counters: usize,
    pub(crate) records: usize,
}

impl Shape {
    pub(crate) const fn names_at(self) -> usize {
        BLOCK_HEADER
    }

    pub(crate) const fn values_at(self) -> usize {
        (self.names_at() + self.counters * NAME_BYTES).next_multiple_of(64)
    }

    pub(crate) const fn records_at(self) -> usize {
        (self.values_at() + self.counters * 8).next_multiple_of(64)
    }

    pub(crate) const fn len_bytes(self) -> usize {
        (self.records_at() + self.records * RECORD_BYTES).next_multiple_of(64)
    }
}
