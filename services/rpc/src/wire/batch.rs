//! Version 1 of a batch's payload: consecutive calls, or their results (RF-RPC, section 4.1).
//!
//! As in the paper, each entry follows its size in 32 bits. There are four differences:
//! * The header and tail are those of the message. Its number ensures that a batch is executed at most once.
//! * An entry contains its method or status.
//! * A batch of calls begins with the number of its entries.
//! * A batch of results belongs to exactly one batch of calls, and is returned in segments like any long result. The
//!   server therefore needs no batch size of its own.

use farcall_link::BatchConfig;
use thiserror::Error;

use super::Status;
use super::layout::padded;

/// The version of the layout.
pub const BATCH_VERSION: u8 = 1;
/// Bytes of a batch's head, in front of its calls: version u8, 0 u8, entries u16, 0 u32.
pub const BATCH_HEAD_BYTES: usize = 8;
/// Bytes of an entry's head: its length u32, its method or status u16, 0 u16. Entries are padded to 8 bytes.
pub const ENTRY_HEAD_BYTES: usize = 8;

/// Why a batch is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// An unsupported version.
    #[error("batch version {0}; this side speaks {BATCH_VERSION}")]
    Version(u8),
    /// Reserved bits are set.
    #[error("a batch or entry with unknown bits")]
    UnknownBits,
    /// The number of entries differs from the head, or is zero, or exceeds the maximum.
    #[error("a batch of {0} entries by its head; 1 to {max}, and as many as follow", max = BatchConfig::CALLS_MAX)]
    Entries(u16),
    /// An entry extends beyond the end of the batch.
    #[error("an entry reaches beyond the end of its batch")]
    Cut,
}

/// Returns the head of a batch of `entries` calls.
#[inline]
pub const fn batch_head(entries: u16) -> [u8; BATCH_HEAD_BYTES] {
    (BATCH_VERSION as u64 | (entries as u64) << 16).to_le_bytes()
}

/// Returns the head of an entry.
#[inline]
pub const fn entry_head(len_bytes: u32, word: u16) -> [u8; ENTRY_HEAD_BYTES] {
    (len_bytes as u64 | (word as u64) << 32).to_le_bytes()
}

/// Returns the number of bytes that an entry occupies.
#[inline]
pub const fn entry_bytes(payload_bytes: usize) -> usize {
    ENTRY_HEAD_BYTES + padded(payload_bytes)
}

/// Appends an entry.
#[inline]
pub fn push_entry(batch: &mut Vec<u8>, method: u16, payload: &[u8]) {
    let end = batch.len() + entry_bytes(payload.len());
    batch.extend_from_slice(&entry_head(payload.len() as u32, method));
    batch.extend_from_slice(payload);
    batch.resize(end, 0);
}

/// Removes the first entry of `rest` and returns its method or status, and its bytes.
///
/// # Errors
/// Returns [`BatchError`] if `rest` does not begin with a valid entry.
#[inline]
pub fn take_entry<'a>(rest: &mut &'a [u8]) -> Result<(u16, &'a [u8]), BatchError> {
    let (head, after) = rest.split_first_chunk::<ENTRY_HEAD_BYTES>().ok_or(BatchError::Cut)?;
    let head = u64::from_le_bytes(*head);
    let len_bytes = head as u32 as usize;
    if head >> 48 != 0 {
        return Err(BatchError::UnknownBits);
    }
    let bytes = after.get(..len_bytes).ok_or(BatchError::Cut)?;
    *rest = after.get(padded(len_bytes)..).ok_or(BatchError::Cut)?;
    Ok(((head >> 32) as u16, bytes))
}

/// The calls of a batch: methods and payloads.
#[derive(Clone, Debug)]
pub struct BatchedCalls<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> BatchedCalls<'a> {
    /// Decodes a batch of calls. All entries are checked here, so iteration cannot fail.
    ///
    /// # Errors
    /// Returns [`BatchError`] if any part of the batch is malformed; none of its calls may be executed then.
    pub fn decode(batch: &'a [u8]) -> Result<Self, BatchError> {
        let (head, rest) = batch.split_first_chunk::<BATCH_HEAD_BYTES>().ok_or(BatchError::Cut)?;
        let head = u64::from_le_bytes(*head);
        let (version, count) = (head as u8, (head >> 16) as u16);
        if version != BATCH_VERSION {
            return Err(BatchError::Version(version));
        }
        if head & !0xffff_00ff != 0 {
            return Err(BatchError::UnknownBits);
        }
        let calls = Self { left: count, rest };
        let mut end = rest;
        for _ in 0..count {
            take_entry(&mut end)?;
        }
        if !(1..=BatchConfig::CALLS_MAX).contains(&count) || !end.is_empty() {
            return Err(BatchError::Entries(count));
        }
        Ok(calls)
    }
}

impl<'a> Iterator for BatchedCalls<'a> {
    type Item = (u16, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        take_entry(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for BatchedCalls<'_> {}

/// Removes the first result of `rest`.
///
/// # Errors
/// Returns [`BatchError`] if `rest` does not begin with a valid result.
#[inline]
pub fn take_result<'a>(rest: &mut &'a [u8]) -> Result<(Status, &'a [u8]), BatchError> {
    take_entry(rest).map(|(status, bytes)| (Status(status), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(entries: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut batch = batch_head(entries.len() as u16).to_vec();
        entries.iter().for_each(|(method, payload)| push_entry(&mut batch, *method, payload));
        batch
    }

    fn refusal(batch: &[u8]) -> BatchError {
        BatchedCalls::decode(batch).expect_err("refused")
    }

    #[test]
    fn what_is_no_batch_is_refused_before_any_of_it_is_executed() {
        let good = batch(&[(1, b"one".to_vec()), (2, vec![])]);
        assert_eq!(BatchedCalls::decode(&good).unwrap().collect::<Vec<_>>(), [(1, &b"one"[..]), (2, b"")]);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            refusal(&bytes)
        };
        assert_eq!(with(0, 2), BatchError::Version(2));
        assert_eq!((with(1, 1), with(4, 1)), (BatchError::UnknownBits, BatchError::UnknownBits));
        assert_eq!((with(2, 1), with(2, 0)), (BatchError::Entries(1), BatchError::Entries(0)));
        assert_eq!((with(2, 3), with(8, 200)), (BatchError::Cut, BatchError::Cut));
        assert_eq!((with(11, 0xff), with(14, 1)), (BatchError::Cut, BatchError::UnknownBits));
        assert_eq!(refusal(&good[..good.len() - 1]), BatchError::Cut);
        assert_eq!((refusal(&good[..7]), refusal(b"")), (BatchError::Cut, BatchError::Cut));
        assert_eq!(refusal(&batch(&vec![(1, vec![]); 129])), BatchError::Entries(129));
    }

    proptest! {
        #[test]
        fn batches_travel(entries in proptest::collection::vec(
            (any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40)), 1..=128)
        ) {
            let bytes = batch(&entries);
            let came: Vec<_> = BatchedCalls::decode(&bytes).unwrap().map(|(method, payload)| (method, payload.to_vec())).collect();
            prop_assert_eq!(came, entries);
        }

        #[test]
        fn any_bytes_are_a_batch_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = BatchedCalls::decode(&bytes).map(|calls| assert_eq!(calls.len(), calls.count()));
        }
    }
}
