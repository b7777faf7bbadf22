//! Checker of memory: each byte has one of its possible values.

use std::fmt;

/// A write of the single writer; later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(u64);

/// Error: a byte with a value that no permitted order of writes produces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Offset of the byte.
    pub offset: usize,
    /// Value of the byte.
    pub found: u8,
    /// Possible values.
    pub possible: Vec<u8>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is {:#04x}; it could be {:02x?}", self.offset, self.found, self.possible)
    }
}

impl std::error::Error for Wrong {}

/// A reference model of memory with one writer, whose writes are executed in order, completely, partly or not at all.
/// Only confirmed writes are known to be complete.
#[derive(Clone)]
pub struct Image {
    /// For each byte: its possible values and the writes that produce them, oldest first.
    bytes: Vec<Vec<(WriteId, u8)>>,
    next: u64,
}

impl Image {
    /// Creates the model of memory that contains `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.iter().map(|byte| vec![(WriteId(0), *byte)]).collect(), next: 0 }
    }

    /// Begins a write.
    pub fn begin(&mut self, offset: usize, bytes: &[u8]) -> WriteId {
        self.next += 1;
        let id = WriteId(self.next);
        for (values, byte) in self.bytes[offset..].iter_mut().zip(bytes) {
            values.push((id, *byte));
        }
        id
    }

    /// Records that a write is complete. Earlier writes cannot take effect any more in its range; outside of the range
    /// nothing is known about them.
    pub fn confirm(&mut self, id: WriteId, offset: usize, len_bytes: usize) {
        for values in &mut self.bytes[offset..offset + len_bytes] {
            values.retain(|(of, _)| *of >= id);
        }
    }

    /// Checks bytes read at `offset`.
    ///
    /// # Errors
    /// Returns the first impossible byte.
    pub fn check(&self, offset: usize, found: &[u8]) -> Result<(), Wrong> {
        self.check_since(WriteId(0), offset, found)
    }

    /// Like [`Image::check`], for a range in which the write `id` is complete, unless a later write is.
    ///
    /// # Errors
    /// Returns the first impossible byte.
    pub fn check_since(&self, id: WriteId, offset: usize, found: &[u8]) -> Result<(), Wrong> {
        for (at, byte) in found.iter().enumerate().map(|(i, byte)| (offset + i, *byte)) {
            let values = || self.bytes[at].iter().filter(|(of, _)| *of >= id).map(|(_, value)| *value);
            if !values().any(|value| value == byte) {
                return Err(Wrong { offset: at, found: byte, possible: values().collect() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_unconfirmed_writes_as_present_or_absent() {
        let mut image = Image::new(&[0; 6]);
        image.begin(0, &[1; 4]);
        let second = image.begin(2, &[2; 4]);
        assert!(image.check(0, &[0; 6]).is_ok(), "both lost");
        assert!(image.check(0, &[1, 0, 2, 1, 0, 2]).is_ok(), "both in part");
        assert!(image.check(0, &[2]).is_err(), "the second does not write there");
        assert!(image.check_since(second, 2, &[2, 2]).is_ok() && image.check_since(second, 2, &[1]).is_err());
        image.confirm(second, 2, 4);
        assert!(image.check(0, &[0, 1, 2, 2, 2, 2]).is_ok(), "the first is as uncertain as before");
        assert!(image.check(0, &[1, 1, 1, 2, 2, 2]).is_err(), "it cannot come after the second");
        assert!(image.check(5, &[0]).is_err(), "the second is there");
    }

    #[test]
    fn a_write_begun_later_may_be_over_a_confirmed_one() {
        let mut image = Image::new(&[0; 2]);
        let first = image.begin(0, &[1; 2]);
        image.begin(0, &[2; 1]);
        image.confirm(first, 0, 2);
        assert!(image.check(0, &[1, 1]).is_ok() && image.check(0, &[2, 1]).is_ok());
        assert!(image.check(0, &[0]).is_err() && image.check(1, &[2]).is_err());
    }
}
