//! Memory: what acknowledged writes left there.

use std::fmt;

/// A write that one writer began; later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub(super) u64);

/// A byte that no admissible order of writes leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where.
    pub offset: usize,
    /// What it holds.
    pub found: u8,
    /// What it could hold.
    pub possible: Vec<u8>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is {:#04x}; it could be {:02x?}", self.offset, self.found, self.possible)
    }
}

impl std::error::Error for Wrong {}

#[derive(Clone)]
struct Write {
    id: WriteId,
    offset: usize,
    bytes: Vec<u8>,
}

/// A reference model of memory with one writer, whose writes are executed in their order. A write that is not
/// acknowledged may have been executed, in part too.
#[derive(Clone)]
pub struct Image {
    settled: Vec<u8>,
    open: Vec<Write>,
    next: u64,
}

impl Image {
    /// Zeroed memory.
    pub fn new(len_bytes: usize) -> Self {
        Self { settled: vec![0; len_bytes], open: Vec::new(), next: 0 }
    }

    /// The writer begins a write.
    pub fn begin(&mut self, offset: usize, bytes: &[u8]) -> WriteId {
        self.next += 1;
        let id = WriteId(self.next);
        self.open.push(Write { id, offset, bytes: bytes.to_vec() });
        id
    }

    /// A write is acknowledged, and with it all that were begun before.
    pub fn settle(&mut self, id: WriteId) {
        let later = self.open.iter().position(|write| write.id > id).unwrap_or(self.open.len());
        for write in self.open.drain(..later) {
            let range = write.offset..write.offset + write.bytes.len();
            self.settled[range].copy_from_slice(&write.bytes);
        }
    }

    /// The memory is known to hold these bytes now, whatever was open: its owner read it when no write could be under way.
    pub fn adopt(&mut self, bytes: &[u8]) {
        self.settled.copy_from_slice(bytes);
        self.open.clear();
    }

    /// Whether bytes found at `offset` are possible.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn check(&self, offset: usize, found: &[u8]) -> Result<(), Wrong> {
        for (at, byte) in found.iter().enumerate().map(|(i, byte)| (offset + i, *byte)) {
            let could = |write: &Write| write.bytes.get(at.checked_sub(write.offset)?).copied();
            if self.settled[at] != byte && !self.open.iter().any(|write| could(write) == Some(byte)) {
                let mut possible = vec![self.settled[at]];
                possible.extend(self.open.iter().filter_map(could));
                return Err(Wrong { offset: at, found: byte, possible });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_writes_may_be_there_and_settled_ones_are() {
        let mut image = Image::new(8);
        let first = image.begin(0, &[1; 4]);
        let second = image.begin(2, &[2; 4]);
        assert!(image.check(0, &[0; 8]).is_ok());
        assert!(image.check(0, &[1, 0, 2, 1, 0, 2, 0, 0]).is_ok(), "in part");
        assert!(image.check(0, &[2]).is_err());
        image.settle(first);
        assert!(image.check(0, &[1, 1, 1, 2, 0, 2, 0, 0]).is_ok());
        assert_eq!(image.check(0, &[1, 0]), Err(Wrong { offset: 1, found: 0, possible: vec![1] }));
        image.settle(second);
        assert!(image.check(0, &[1, 1, 2, 2, 2, 2, 0, 0]).is_ok());
        assert!(image.check(2, &[1]).is_err(), "the later write was settled");
        image.adopt(&[9; 8]);
        assert!(image.check(0, &[9; 8]).is_ok());
    }
}
