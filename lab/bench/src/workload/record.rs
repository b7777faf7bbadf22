//! Keys and values of records. A reader can recompute any value from the record's number and the version that the
//! value contains.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Minimum length of a value in bytes, for its version and a check.
pub const VALUE_LEN_BYTES_MIN: usize = 8;
/// Minimum length of a key in bytes; shorter keys could not name every record.
const KEY_LEN_BYTES_MIN: usize = 8;
/// Length in bytes of the version at the start of every value.
const VERSION_LEN_BYTES: usize = 4;

/// Lengths of keys and values. The length of a value is drawn uniformly from a range, by record and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordShape {
    key_len_bytes: usize,
    value_len_bytes_min: usize,
    value_len_bytes: usize,
}

impl Default for RecordShape {
    /// Returns the lengths of the RF-RPC evaluation: 16-byte keys, 32-byte values.
    fn default() -> Self {
        Self { key_len_bytes: 16, value_len_bytes_min: 32, value_len_bytes: 32 }
    }
}

/// A value that differs from what was written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Mismatch {
    /// Its length is not that of any written value.
    #[error("record {record}: value of {found} bytes, {expected} were written")]
    Length {
        /// Number of the record.
        record: u64,
        /// Length of the value in bytes.
        found: usize,
        /// Expected length in bytes.
        expected: usize,
    },
    /// Its bytes do not belong to this record and the version that they contain: torn, or of another record.
    #[error("record {record}: byte {at} does not belong to version {version}")]
    Bytes {
        /// Number of the record.
        record: u64,
        /// Version in the value.
        version: u64,
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// It is older than an acknowledged write, or was never written.
    #[error("record {record}: version {version} read, between {oldest} and {newest} was expected")]
    Version {
        /// Number of the record.
        record: u64,
        /// Version in the value.
        version: u64,
        /// Last version acknowledged before the read began.
        oldest: u64,
        /// Last version written before the read ended.
        newest: u64,
    },
}

/// The requested lengths are too small for verifiable records.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "keys of {key_len_bytes} and values of {value_len_bytes} bytes cannot be verified; use keys of at least \
     {KEY_LEN_BYTES_MIN} and values of at least {VALUE_LEN_BYTES_MIN} bytes"
)]
pub struct ShapeTooSmall {
    key_len_bytes: usize,
    value_len_bytes: usize,
}

impl RecordShape {
    /// Creates a shape with these lengths in bytes.
    ///
    /// # Errors
    /// Returns an error if they are too small to name the record and to contain a version with a check.
    pub fn new(key_len_bytes: usize, value_len_bytes: usize) -> Result<Self, ShapeTooSmall> {
        Self::with_values(key_len_bytes, value_len_bytes..=value_len_bytes)
    }

    /// Creates a shape with this length of keys and a range of lengths of values.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn with_values(
        key_len_bytes: usize,
        values_len_bytes: RangeInclusive<usize>,
    ) -> Result<Self, ShapeTooSmall> {
        let (value_len_bytes_min, value_len_bytes) = values_len_bytes.into_inner();
        if key_len_bytes < KEY_LEN_BYTES_MIN || value_len_bytes_min < VALUE_LEN_BYTES_MIN {
            return Err(ShapeTooSmall { key_len_bytes, value_len_bytes: value_len_bytes_min });
        }
        Ok(Self {
            key_len_bytes,
            value_len_bytes_min,
            value_len_bytes: value_len_bytes.max(value_len_bytes_min),
        })
    }

    /// Returns the length of every key in bytes.
    pub fn key_len_bytes(&self) -> usize {
        self.key_len_bytes
    }

    /// Returns the length of the longest values in bytes.
    pub fn value_len_bytes(&self) -> usize {
        self.value_len_bytes
    }

    /// Returns the range of the lengths of values in bytes.
    pub fn values_len_bytes(&self) -> RangeInclusive<usize> {
        self.value_len_bytes_min..=self.value_len_bytes
    }

    /// Returns the length of version `version` of the value of `record` in bytes.
    fn len_of(&self, record: u64, version: u32) -> usize {
        let lens = (self.value_len_bytes - self.value_len_bytes_min) as u64 + 1;
        if lens == 1 {
            return self.value_len_bytes;
        }
        self.value_len_bytes_min + (next_word(&mut !seed_of(record, version)) % lens) as usize
    }

    /// Writes the key of `record` into the first bytes of `out` and returns them: `k`, then the number in decimal with
    /// leading zeros, so that text protocols can carry it.
    ///
    /// # Panics
    /// Panics if `out` is shorter than a key.
    pub fn key<'a>(&self, record: u64, out: &'a mut [u8]) -> &'a [u8] {
        let key = &mut out[..self.key_len_bytes];
        key.fill(b'0');
        key[0] = b'k';
        // Writes only the significant digits, because this runs once per request.
        let mut rest = record;
        for digit in key[1..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        key
    }

    /// Writes version `version` of the value of `record` into the first bytes of `out` and returns them.
    ///
    /// Versions are truncated to 32 bits.
    ///
    /// # Panics
    /// Panics if `out` is shorter than a value.
    pub fn value<'a>(&self, record: u64, version: u64, out: &'a mut [u8]) -> &'a [u8] {
        let version = version as u32;
        let value = &mut out[..self.len_of(record, version)];
        value[..VERSION_LEN_BYTES].copy_from_slice(&version.to_le_bytes());
        let mut state = seed_of(record, version);
        for chunk in value[VERSION_LEN_BYTES..].chunks_mut(8) {
            let word = next_word(&mut state).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        value
    }

    /// Checks that `value` is one that was written to `record`, and returns the version that it contains.
    ///
    /// # Errors
    /// Returns an error if its length or any byte is wrong.
    pub fn verify(&self, record: u64, value: &[u8]) -> Result<u64, Mismatch> {
        let Some((head, tail)) = value.split_first_chunk::<VERSION_LEN_BYTES>() else {
            return Err(Mismatch::Length { record, found: value.len(), expected: self.value_len_bytes_min });
        };
        let version = u32::from_le_bytes(*head);
        let expected = self.len_of(record, version);
        if value.len() != expected {
            return Err(Mismatch::Length { record, found: value.len(), expected });
        }
        let mut state = seed_of(record, version);
        for (index, chunk) in tail.chunks(8).enumerate() {
            let word = next_word(&mut state).to_le_bytes();
            if let Some(wrong) = chunk.iter().zip(word).position(|(found, expected)| *found != expected) {
                let at = VERSION_LEN_BYTES + index * 8 + wrong;
                return Err(Mismatch::Bytes { record, version: version.into(), at });
            }
        }
        Ok(version.into())
    }

    /// Checks as [`Self::verify`] does, and that the version lies in `oldest..=newest`.
    ///
    /// # Errors
    /// Returns an error if the bytes or the version are wrong.
    pub fn verify_between(
        &self,
        record: u64,
        value: &[u8],
        oldest: u64,
        newest: u64,
    ) -> Result<u64, Mismatch> {
        let version = self.verify(record, value)?;
        if version < oldest || version > newest {
            return Err(Mismatch::Version { record, version, oldest, newest });
        }
        Ok(version)
    }
}

fn seed_of(record: u64, version: u32) -> u64 {
    record.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ u64::from(version).rotate_left(32) ^ 0x5851_f42d_4c95_7f2d
}

/// Returns the next word of SplitMix64 (Steele, Lea, Flood 2014), which needs a few cycles per word and depends on
/// every bit of the seed.
fn next_word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_printable_distinct_and_of_the_right_length() {
        let shape = RecordShape::default();
        let (mut a, mut b) = ([0; 16], [0; 16]);
        assert_eq!(shape.key(1234, &mut a), b"k000000000001234");
        assert_ne!(shape.key(1, &mut a), shape.key(2, &mut b));
    }

    #[test]
    fn a_value_verifies_only_for_its_record_version_and_bytes() {
        for len in [8, 9, 16, 17, 32, 100, 1000] {
            let shape = RecordShape::new(16, len).unwrap();
            let mut buffer = vec![0; len];
            shape.value(77, 5, &mut buffer);
            assert_eq!(shape.verify(77, &buffer), Ok(5));
            assert!(matches!(shape.verify(78, &buffer), Err(Mismatch::Bytes { .. })));
            for at in 0..len {
                buffer[at] ^= 1;
                assert!(shape.verify(77, &buffer).is_err(), "flipped bit in byte {at} of {len} unnoticed");
                buffer[at] ^= 1;
            }
            assert!(matches!(shape.verify(77, &buffer[1..]), Err(Mismatch::Length { .. })));
        }
    }

    #[test]
    fn generates_every_length_of_a_range_and_rejects_others() {
        let shape = RecordShape::with_values(16, 8..=1000).unwrap();
        let mut counts = vec![0u32; 1001];
        let mut buffer = [0; 1000];
        for record in 0..100_000 {
            let len = shape.value(record, record % 3, &mut buffer).len();
            counts[len] += 1;
            assert_eq!(shape.verify(record, &buffer[..len]), Ok(record % 3));
            assert!(shape.verify(record, &buffer[..len - 1]).is_err());
        }
        // About 100 of each are expected; the probability that one is missing is 1 in 10^43.
        assert!(counts[..8].iter().all(|count| *count == 0) && counts[8..].iter().all(|count| *count > 0));
    }

    #[test]
    fn a_torn_value_is_noticed() {
        let shape = RecordShape::default();
        let (mut old, mut new) = ([0; 32], [0; 32]);
        shape.value(3, 8, &mut old);
        shape.value(3, 9, &mut new);
        old[16..].copy_from_slice(&new[16..]);
        assert!(matches!(shape.verify(3, &old), Err(Mismatch::Bytes { at: 16.., .. })));
    }

    #[test]
    fn stale_and_future_versions_are_noticed() {
        let shape = RecordShape::default();
        let mut buffer = [0; 32];
        shape.value(3, 8, &mut buffer);
        assert_eq!(shape.verify_between(3, &buffer, 8, 8), Ok(8));
        assert!(matches!(shape.verify_between(3, &buffer, 9, 12), Err(Mismatch::Version { .. })));
        assert!(matches!(shape.verify_between(3, &buffer, 1, 7), Err(Mismatch::Version { .. })));
    }

    #[test]
    fn shapes_too_small_are_refused_with_the_limits() {
        assert!(RecordShape::new(16, 7).unwrap_err().to_string().contains("at least 8"));
        assert!(RecordShape::new(7, 32).is_err());
    }
}
