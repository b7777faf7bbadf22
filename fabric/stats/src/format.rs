//! Layout of a statistics segment, version 2. Little-endian on all supported machines.
//!
//! ```text
//! 0      magic, version, pid, start time, used bytes (atomic), executable name
//! 4096   blocks, one after another: header, names, values, flight records
//! ```

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"farstat2");
/// The bits of the magic number that all versions share.
pub(crate) const MAGIC_PREFIX: u64 = u64::from_le_bytes(*b"farstat\0");
pub(crate) const SEGMENT_BYTES: usize = 8 << 20;

pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_PID: usize = 8;
pub(crate) const AT_START: usize = 16;
/// Stored last when a block is added, with release.
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
/// Space for two IPv6 addresses with ports, written in full, and the text around them.
pub(crate) const LABEL_BYTES: usize = 160;
pub(crate) const BLOCK_HEADER: usize = 192;

/// Returns whether a segment that begins with `word` contains statistics, of this version or another.
pub(crate) const fn is_magic(word: u64) -> bool {
    word & (u64::MAX >> 8) == MAGIC_PREFIX
}

/// Returns the word at an offset of a copied segment.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

pub(crate) const LIVE: u64 = 1;
pub(crate) const ENDED: u64 = 2;

pub(crate) const NAME_BYTES: usize = 32;
/// A flight record: nanoseconds since the process's page was created, code, argument.
pub(crate) const RECORD_BYTES: usize = 24;

/// Offsets inside a block with `counters` and `records`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    pub(crate) counters: usize,
    pub(crate) records: usize,
}

impl BlockLayout {
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

/// Returns the leading words of a label that can be part of a metric name.
pub(crate) fn words(label: &str) -> Vec<&str> {
    let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    label.split([' ', ',']).take_while(is_word).collect()
}

/// Splits a label that consists of words and one final number.
pub(crate) fn split_label(label: &str) -> Option<(String, u32)> {
    let words = words(label);
    let number = label.rsplit_once(' ')?.1.parse().ok()?;
    (words.len() + 1 == label.split(' ').count()).then(|| (words.join("_"), number))
}
