//! Version 1 of the payload with which a client collects the results of deferred calls: consecutive entries.
//!
//! An entry is 16 bytes, call id u64, length u32, status u16, flags u16, and the result, padded to 8 bytes. A result
//! that exceeds a slot is not in its entry: the server stores it, and the client requests it in segments like any long
//! result.

use thiserror::Error;

use super::Status;
use super::layout::padded;

/// Bytes in front of each result.
pub const COLLECTED_HEAD_BYTES: usize = 16;

/// Flag: the server stores the result, and the entry contains no bytes of it.
const AT_SERVER: u16 = 1;

/// Outcome of a deferred call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected<'a> {
    /// The call.
    pub call_id: u64,
    /// Its status.
    pub status: Status,
    /// Its result, or the text of its error.
    pub result: CollectedResult<'a>,
}

/// Where the result of a deferred call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectedResult<'a> {
    /// In the entry.
    Here(&'a [u8]),
    /// At the server, with this length in bytes.
    AtServer(u32),
}

/// Why an entry is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CollectedError {
    /// Reserved bits are set.
    #[error("a collected result with unknown flags {0:#06x}")]
    UnknownFlags(u16),
    /// The entry extends beyond the end of the message.
    #[error("a collected result reaches beyond the end of its message")]
    Cut,
}

/// Returns the number of bytes that an entry occupies.
#[inline]
pub const fn collected_bytes(result_bytes: usize) -> usize {
    COLLECTED_HEAD_BYTES + padded(result_bytes)
}

/// Appends an entry.
pub fn push_collected(entries: &mut Vec<u8>, collected: &Collected<'_>) {
    let (len_bytes, flags, bytes) = match collected.result {
        CollectedResult::Here(bytes) => (bytes.len() as u32, 0, bytes),
        CollectedResult::AtServer(len_bytes) => (len_bytes, AT_SERVER, &[][..]),
    };
    let end = entries.len() + collected_bytes(bytes.len());
    entries.extend_from_slice(&collected.call_id.to_le_bytes());
    entries.extend_from_slice(&len_bytes.to_le_bytes());
    entries.extend_from_slice(&collected.status.0.to_le_bytes());
    entries.extend_from_slice(&flags.to_le_bytes());
    entries.extend_from_slice(bytes);
    entries.resize(end, 0);
}

/// Removes the first entry of `rest` and returns it.
///
/// # Errors
/// Returns [`CollectedError`] if `rest` does not begin with a valid entry.
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
        AT_SERVER => {
            *rest = after;
            CollectedResult::AtServer(len_bytes)
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
                result: kept.map_or(CollectedResult::Here(bytes), CollectedResult::AtServer),
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
