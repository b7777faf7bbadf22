//! Local baseline for measurements: the pager stores the pages in its own memory.

use std::sync::{Mutex, PoisonError};

use farcall_files::{Memory, Result};
use rustix::io::Errno;

/// Length in bytes of the chunk that one lock protects; requests of the kernel are rarely longer.
const PIECE_BYTES: usize = 1 << 20;

/// Memory of this process, initially zeros.
pub(crate) struct OwnMemory {
    pieces: Box<[Mutex<Box<[u8]>>]>,
}

impl OwnMemory {
    pub fn new(size_bytes: u64) -> Self {
        let pieces = size_bytes.div_ceil(PIECE_BYTES as u64);
        Self { pieces: (0..pieces).map(|_| Mutex::new(vec![0; PIECE_BYTES].into())).collect() }
    }

    /// Calls `f` with each part of the chunks that contains bytes of the range, and the offset of the part in the
    /// range.
    fn walk(&self, at: u64, len_bytes: usize, mut f: impl FnMut(&mut [u8], usize)) -> Result<()> {
        let at = usize::try_from(at).map_err(|_| Errno::IO)?;
        let mut done = 0;
        while done < len_bytes {
            let (piece, offset) = ((at + done) / PIECE_BYTES, (at + done) % PIECE_BYTES);
            let piece = self.pieces.get(piece).ok_or(Errno::IO)?;
            let part_bytes = (PIECE_BYTES - offset).min(len_bytes - done);
            // The contents are consistent even after a panic, because bytes are only copied.
            let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
            f(&mut piece[offset..offset + part_bytes], done);
            done += part_bytes;
        }
        Ok(())
    }
}

impl Memory for OwnMemory {
    fn read(&self, at: u64, len_bytes: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.walk(at, len_bytes, |part, _| bytes.extend_from_slice(part))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.walk(at, bytes.len(), |part, from| {
            let len_bytes = part.len();
            part.copy_from_slice(&bytes[from..from + len_bytes]);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_written_and_not_beyond_the_end() {
        let memory = OwnMemory::new(2 * PIECE_BYTES as u64);
        let at = PIECE_BYTES as u64 - 3;
        memory.write(at, &[1, 2, 3, 4, 5]).unwrap();
        let mut found = vec![9];
        memory.read(at - 1, 7, &mut found).unwrap();
        assert_eq!(found, [9, 0, 1, 2, 3, 4, 5, 0]);
        assert!(memory.read(2 * PIECE_BYTES as u64 - 1, 2, &mut found).is_err());
        assert!(memory.write(u64::MAX, &[0]).is_err());
    }
}
