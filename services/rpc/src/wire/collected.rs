//! Version 1 of what a client collects: results of calls that the server answered later, one behind the other.
//!
//! An entry is 16 bytes, call id u64, length u32, status u16, flags u16, and the result, padded to words. A result that
//! is longer than a slot is not in its entry: the server keeps it, and it is asked for in pieces as any long one.

use thiserror::Error;

use super::Status;
use super::layout::padded;

/// Bytes in front of each result.
pub const COLLECTED_HEAD_BYTES: usize = 16;

/// The result is kept by the server: no bytes of it follow.
const KEPT: u16 = 1;

/// How a call ended that was answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected<'a> {
    /// Which call.
    pub call_id: u64,
    /// How it ended.
    pub status: Status,
    /// Its result, or why there is none.
    pub result: CollectedResult<'a>,
}

/// Where the result of such a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectedResult<'a> {
    /// Here.
    Here(&'a [u8]),
    /// With the server; so many bytes.
    Kept(u32),
}

/// Why an entry is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CollectedError {
    /// Bits that mean nothing.
    #[error("a collected result with unknown flags {0:#06x}")]
    UnknownFlags(u16),
    /// It reaches beyond the end.
    #[error("a collected result reaches beyond the end of its message")]
    Cut,
}

/// Bytes that an entry takes.
#[inline]
pub const fn collected_bytes(result_bytes: usize) -> usize {
    COLLECTED_HEAD_BYTES + padded(result_bytes)
}

/// Appends an entry.
pub fn push_collected(entries: &mut Vec<u8>, collected: &Collected<'_>) {
    let (len_bytes, flags, bytes) = match collected.result {
        CollectedResult::Here(bytes) => (bytes.len() as u32, 0, bytes),
        CollectedResult::Kept(len_bytes) => (len_bytes, KEPT, &[][..]),
    };
    let end = entries.len() + collected_bytes(bytes.len());
    entries.extend_from_slice(&collected.call_id.to_le_bytes());
    entries.extend_from_slice(&len_bytes.to_le_bytes());
    entries.extend_from_slice(&collected.status.0.to_le_bytes());
    entries.extend_from_slice(&flags.to_le_bytes());
    entries.extend_from_slice(bytes);
    entries.resize(end, 0);
}

/// Takes the first entry off `rest`.
///
/// # Errors
/// If it is none.
pub fn take_collected<'a>(rest: &mut &'a [u8]) -> Result<Collected<'a>, CollectedError> {
    let (head, after) = rest.split_first_chunk::<COLLECTED_HEAD_BYTES>().ok_or(CollectedError::Cut)?;
    let head = u128::from_le_bytes(*head);
    let (call_id, len_bytes) = (head as u64, (head >> 64) as u32);
    let (status, flags) = (Status((head >> 96) as u16), (head >> 112) as u16);
    let result = match flags {
        0 => {
            let bytes = after.get(..len_bytes as usize).ok_or(CollectedError::Cut)?;
            *rest = after.get(padded(len_bytes as usize)..).ok_or(CollectedError::Cut)?;
            CollectedResult::Here(bytes)
        }
        KEPT => {
            *rest = after;
            CollectedResult::Kept(len_bytes)
        }
        unknown => return Err(CollectedError::UnknownFlags(unknown)),
    };
    Ok(Collected { call_id, status, result })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_entry_is_refused() {
        let mut good = Vec::new();
        let here = CollectedResult::Here(b"result");
        push_collected(&mut good, &Collected { call_id: 7, status: Status::OK, result: here });
        assert_eq!(good.len(), 24);
        for cut in 0..good.len() {
            assert_eq!(take_collected(&mut &good[..cut]), Err(CollectedError::Cut), "{cut} bytes");
        }
        good[14] = 2;
        assert_eq!(take_collected(&mut &good[..]), Err(CollectedError::UnknownFlags(2)));
    }

    proptest! {
        #[test]
        fn entries_travel(entries in proptest::collection::vec(
            (any::<u64>(), any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40), any::<Option<u32>>()), 0..20)
        ) {
            let entries: Vec<Collected<'_>> = entries.iter().map(|(call_id, status, bytes, kept)| Collected {
                call_id: *call_id,
                status: Status(*status),
                result: kept.map_or(CollectedResult::Here(bytes), CollectedResult::Kept),
            }).collect();
            let mut bytes = Vec::new();
            entries.iter().for_each(|entry| push_collected(&mut bytes, entry));
            let mut rest = &bytes[..];
            for entry in &entries {
                prop_assert_eq!(take_collected(&mut rest), Ok(*entry));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_entries_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            while take_collected(&mut rest).is_ok() {}
        }
    }
}
