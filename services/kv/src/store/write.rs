//! Changes: all kinds of put, delete, increment and decrement.

use super::arena::Granule;
use super::error::{CounterError, StoreError};
use super::item::{self, Header, state};
use super::partition::{Found, Partition, seconds};
use crate::key::Key;

/// Condition of a put, and position of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PutMode {
    /// Stores unconditionally.
    #[default]
    Set,
    /// Stores only if the key has no item.
    Add,
    /// Stores only if the key has an item.
    Replace,
    /// Appends to the value of the item, which keeps its flags and expiration time.
    Append,
    /// Prepends to the value of the item, which keeps its flags and expiration time.
    Prepend,
}

/// Parameters of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Put<'a> {
    /// The bytes to store.
    pub value: &'a [u8],
    /// Flags for use by the client.
    pub flags: u32,
    /// Expiration time in milliseconds of the partition's clock; 0: never.
    pub expires_ms: u64,
    /// Condition and position.
    pub mode: PutMode,
    /// Stores only if the item has exactly this version.
    pub compare_cas: Option<u64>,
    /// With `compare_cas` and a complete value: also accepts an older version. The item is marked stale then, and
    /// keeps its expiration time and whether a caller was instructed to refresh it.
    pub stale_if_older: bool,
}

impl Put<'_> {
    /// Returns whether the value is based on an older version and is accepted even so.
    fn is_late_for(&self, header: &Header) -> bool {
        self.stale_if_older
            && matches!(self.mode, PutMode::Set | PutMode::Replace)
            && self.compare_cas.is_some_and(|wanted| wanted != 0 && wanted < header.cas)
    }
}

/// Result of a put, delete or counter operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The change was made.
    Stored {
        /// The new version.
        cas: u64,
    },
    /// The mode's condition did not hold.
    NotStored,
    /// The item has another version.
    Exists,
    /// There is no item with which to compare.
    NotFound,
}

/// One increment or decrement of a decimal number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Adds; wraps at 2^64.
    Increment(u64),
    /// Subtracts; stops at 0.
    Decrement(u64),
}

/// Maximum number of digits of a number below 2^64.
const DIGITS_MAX: usize = 20;

impl Partition {
    /// Stores a value if its conditions hold.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then, and an old value remains.
    pub fn put(&mut self, key: &Key<'_>, put: &Put<'_>, now_ms: u64) -> Result<Outcome, StoreError> {
        let found = self.find(key, now_ms);
        let is_swap = matches!(put.mode, PutMode::Set | PutMode::Replace);
        // No item has version 0, so a swap that compares with it never succeeds.
        let compare_cas = put.compare_cas.filter(|&wanted| is_swap || wanted != 0);
        let stored = match (put.mode, found) {
            (PutMode::Add, Some(found)) => {
                // As in memcached, a refused add counts as a use of the item, but not as a fetch.
                self.note_interest(&found, now_ms);
                return Ok(self.count_refusal(Outcome::NotStored));
            }
            (PutMode::Set | PutMode::Replace, None) if put.compare_cas.is_some() => {
                return Ok(self.count_refusal(Outcome::NotFound));
            }
            (PutMode::Replace | PutMode::Append | PutMode::Prepend, None) => {
                return Ok(self.count_refusal(Outcome::NotStored));
            }
            (_, None) => self.insert(key, put, now_ms),
            (_, Some(found)) if put.is_late_for(&found.header) => {
                // The item stays marked: the caller instructed to refresh it remains the same, and its time is not
                // extended.
                let put = Put { expires_ms: found.header.expires_ms, ..*put };
                self.overwrite(found, &put, found.header.state & state::WIN_SENT | state::STALE, now_ms)
            }
            (_, Some(found)) if compare_cas.is_some_and(|wanted| wanted != found.header.cas) => {
                let refused =
                    if is_swap { &mut self.stats.cas_mismatches } else { &mut self.stats.puts_not_stored };
                *refused += 1;
                return Ok(Outcome::Exists);
            }
            (PutMode::Append | PutMode::Prepend, Some(found)) => self.extend(found, put, now_ms),
            (_, Some(found)) => self.overwrite(found, put, 0, now_ms),
        };
        match stored {
            Ok(cas) => {
                self.stats.puts += 1;
                self.stats.cas_hits += u64::from(is_swap && put.compare_cas.is_some());
                Ok(Outcome::Stored { cas })
            }
            Err(error) => {
                match error {
                    StoreError::ValueTooLarge { .. } => self.stats.too_large += 1,
                    StoreError::OutOfMemory => self.stats.out_of_memory += 1,
                }
                Err(error)
            }
        }
    }

    /// Counts a value that was too large to be read at all. If it was meant to overwrite the item, the item is
    /// removed, because the client no longer wants the old value to be read.
    pub fn note_too_large(&mut self, key: &Key<'_>, overwrites: bool, now_ms: u64) {
        self.stats.too_large += 1;
        let found = self.find(key, now_ms).filter(|_| overwrites);
        if let Some(found) = found {
            self.remove(found.bucket, found.slot);
        }
    }

    /// Stores a value unconditionally: the common case of [`Partition::put`].
    ///
    /// # Errors
    /// Like [`Partition::put`].
    pub fn set(&mut self, key: &Key<'_>, value: &[u8], now_ms: u64) -> Result<u64, StoreError> {
        match self.put(key, &Put { value, ..Put::default() }, now_ms)? {
            Outcome::Stored { cas } => Ok(cas),
            other => unreachable!("an unconditional put ended as {other:?}"),
        }
    }

    /// Removes the item under `key`; with `compare_cas` only if it has exactly that version.
    ///
    /// Returns [`Outcome::Stored`] with the version removed, [`Outcome::Exists`] or [`Outcome::NotFound`].
    pub fn delete(&mut self, key: &Key<'_>, compare_cas: Option<u64>, now_ms: u64) -> Outcome {
        let Some(found) = self.find(key, now_ms) else {
            self.stats.delete_misses += 1;
            return Outcome::NotFound;
        };
        if compare_cas.is_some_and(|wanted| wanted != found.header.cas) {
            self.stats.delete_misses += 1;
            return Outcome::Exists;
        }
        self.remove(found.bucket, found.slot);
        self.stats.delete_hits += 1;
        Outcome::Stored { cas: found.header.cas }
    }

    /// Changes a decimal number in place. Returns the new number and version, or `None` without an item.
    ///
    /// Flags and expiration time are unchanged. White space around the number is allowed. As in memcached, a value
    /// never becomes shorter: a number with fewer digits than the value had bytes is padded with spaces.
    ///
    /// # Errors
    /// [`CounterError`]; nothing has changed then.
    pub fn count(
        &mut self,
        key: &Key<'_>,
        by: Counter,
        now_ms: u64,
    ) -> Result<Option<(u64, u64)>, CounterError> {
        let is_increment = matches!(by, Counter::Increment(_));
        let Some(found) = self.find(key, now_ms) else {
            let misses = if is_increment { &mut self.stats.incr_misses } else { &mut self.stats.decr_misses };
            *misses += 1;
            return Ok(None);
        };
        let old = stored_decimal(self.lend(&found).value).ok_or(CounterError::NotANumber)?;
        let new = match by {
            Counter::Increment(delta) => old.wrapping_add(delta),
            Counter::Decrement(delta) => old.saturating_sub(delta),
        };
        let mut digits = [0; DIGITS_MAX];
        let digits = format_decimal(new, &mut digits);
        let len_bytes = digits.len().max(found.header.value_len as usize);
        let marks = found.header.state;
        let resized = self.resize(found, len_bytes, now_ms, |_, _, _| {})?;
        let value = &mut self.arena.bytes_mut()[item::value(resized.at, &resized.header)];
        value[..digits.len()].copy_from_slice(digits);
        value[digits.len()..].fill(b' ');
        // Counting does not replace the value: a stale item stays stale, with the same caller instructed to refresh
        // it.
        let cas = self.commit(resized, marks, now_ms);
        let hits = if is_increment { &mut self.stats.incr_hits } else { &mut self.stats.decr_hits };
        *hits += 1;
        Ok(Some((new, cas)))
    }

    fn count_refusal(&mut self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::NotStored => self.stats.puts_not_stored += 1,
            Outcome::NotFound => self.stats.cas_misses += 1,
            Outcome::Exists | Outcome::Stored { .. } => {}
        }
        outcome
    }

    /// Checks the length of a value before it is stored.
    fn check_size(&mut self, len_bytes: usize) -> Result<(), StoreError> {
        let max_bytes = self.config().value_max_bytes;
        if len_bytes > max_bytes {
            return Err(StoreError::ValueTooLarge { len_bytes, max_bytes });
        }
        self.longest_value_bytes = self.longest_value_bytes.max(len_bytes);
        Ok(())
    }

    /// Stores a new item under a key that has none.
    pub(super) fn insert(&mut self, key: &Key<'_>, put: &Put<'_>, now_ms: u64) -> Result<u64, StoreError> {
        self.check_size(put.value.len())?;
        let (bucket, slot) = self.make_slot(key, now_ms).ok_or(StoreError::OutOfMemory)?;
        let granules = Header::granules(key.bytes().len(), put.value.len());
        let at = self.take_block(granules, 0, now_ms).ok_or(StoreError::OutOfMemory)?;
        let header = Header {
            cas: self.take_cas(),
            expires_ms: put.expires_ms,
            flags: put.flags,
            value_len: put.value.len() as u32,
            bucket,
            accessed_s: seconds(now_ms),
            key_len: key.bytes().len() as u8,
            state: 0,
        };
        header.write(&mut self.arena, at);
        let key_range = item::key(&self.arena, at, &header);
        self.arena.bytes_mut()[key_range].copy_from_slice(key.bytes());
        self.arena.bytes_mut()[item::value(at, &header)].copy_from_slice(put.value);
        self.index[bucket as usize].fill(slot, at, key.tag());
        self.index[bucket as usize].note_expiry(put.expires_ms);
        self.stats.items += 1;
        self.stats.items_total += 1;
        Ok(header.cas)
    }

    /// Stores a new value in an item, in its old block if the size is unchanged, and sets the state bits to `marks`.
    fn overwrite(&mut self, found: Found, put: &Put<'_>, marks: u8, now_ms: u64) -> Result<u64, StoreError> {
        let resized = self.resize(found, put.value.len(), now_ms, |_, _, _| {})?;
        let header = Header { flags: put.flags, expires_ms: put.expires_ms, ..resized.header };
        self.arena.bytes_mut()[item::value(resized.at, &header)].copy_from_slice(put.value);
        Ok(self.commit(Found { header, ..resized }, marks, now_ms))
    }

    /// Extends the old value on one side.
    fn extend(&mut self, found: Found, put: &Put<'_>, now_ms: u64) -> Result<u64, StoreError> {
        let (old_len, more) = (found.header.value_len as usize, put.value.len());
        let (old_to, new_to) = if put.mode == PutMode::Append { (0, old_len) } else { (more, 0) };
        let resized = self.resize(found, old_len + more, now_ms, |bytes, from, to| {
            bytes.copy_within(from..from + old_len, to + old_to);
        })?;
        let value = item::value(resized.at, &resized.header);
        self.arena.bytes_mut()[value][new_to..new_to + more].copy_from_slice(put.value);
        Ok(self.commit(resized, 0, now_ms))
    }

    /// Moves the item to a block for `value_len` bytes, if necessary. `keep` may copy from the start of the old value
    /// to that of the new one; both are the same position if the block is unchanged.
    fn resize(
        &mut self,
        found: Found,
        value_len: usize,
        now_ms: u64,
        keep: impl FnOnce(&mut [u8], usize, usize),
    ) -> Result<Found, StoreError> {
        self.check_size(value_len)?;
        let header = Header { value_len: value_len as u32, ..found.header };
        let granules = Header::granules(usize::from(header.key_len), value_len);
        let at: Granule = if self.arena.block(found.at).granules == granules {
            found.at
        } else {
            // The old block is kept until the new one is allocated, so that a refusal changes nothing.
            self.take_block(granules, found.at, now_ms).ok_or(StoreError::OutOfMemory)?
        };
        let (from, to) = (item::value(found.at, &found.header).start, item::value(at, &header).start);
        keep(self.arena.bytes_mut(), from, to);
        if at != found.at {
            let key = item::key(&self.arena, found.at, &found.header);
            let new_key_start = item::key(&self.arena, at, &header).start;
            self.arena.bytes_mut().copy_within(key, new_key_start);
            self.index[found.bucket as usize].relocate(found.slot, at);
            self.arena.free(found.at);
        }
        Ok(Found { at, header, ..found })
    }

    /// Completes a change: new version, most recently used, and state bits as in `marks`.
    fn commit(&mut self, found: Found, marks: u8, now_ms: u64) -> u64 {
        let cas = self.take_cas();
        let header =
            Header { cas, accessed_s: seconds(now_ms), state: state::REFERENCED | marks, ..found.header };
        header.write(&mut self.arena, found.at);
        let bucket = &mut self.index[found.bucket as usize];
        bucket.bump(found.slot);
        bucket.note_expiry(header.expires_ms);
        cas
    }
}

/// Parses the decimal number of a stored value like strtoull(3): after white space, and up to white space. Unlike
/// strtoull, it accepts no sign.
fn stored_decimal(value: &[u8]) -> Option<u64> {
    // Like isspace(3); `u8::is_ascii_whitespace` does not include the vertical tab.
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = value.iter().position(|byte| !is_space(byte))?;
    let text = value[start..].split(is_space).next()?;
    let zeros = text.iter().take_while(|&&byte| byte == b'0').count();
    // Any number of leading zeros is allowed.
    parse_decimal(&text[zeros.min(text.len() - 1)..])
}

/// Parses a decimal number below 2^64 without sign or padding.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > DIGITS_MAX {
        return None;
    }
    text.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

/// Writes `number` in decimal to the end of `digits`; returns the part written.
pub(crate) fn format_decimal(number: u64, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let (mut rest, mut start) = (number, DIGITS_MAX);
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stored_numbers_between_white_space() {
        for (value, number) in [
            ("99 ", 99),
            (" 5", 5),
            ("5\r\nx", 5),
            ("1 1", 1),
            ("0000000000000000000000001", 1),
            ("\x0b00", 0),
        ] {
            assert_eq!(stored_decimal(value.as_bytes()), Some(number), "{value:?}");
        }
        for value in ["", " ", "x", "5x", "-1", "18446744073709551616"] {
            assert_eq!(stored_decimal(value.as_bytes()), None, "{value:?}");
        }
    }

    #[test]
    fn decimals_round_trip_and_refuse_everything_else() {
        for number in [0, 9, 10, 12345, u64::MAX] {
            assert_eq!(parse_decimal(format_decimal(number, &mut [0; DIGITS_MAX])), Some(number));
        }
        for text in ["", "-1", "+1", "1 ", " 1", "18446744073709551616", "000000000000000000001", "x", "1x"] {
            assert_eq!(parse_decimal(text.as_bytes()), None, "{text}");
        }
    }
}
