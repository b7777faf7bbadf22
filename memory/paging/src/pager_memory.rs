//! Local baseline for measurements: the pager stores the pages in its own memory.

use std::sync::{Mutex, PoisonError};

use farcall_files::{Memory, Result};
use rustix::io::Errno;

/// Length in bytes of the chunk that one lock protects; requests of the kernel are rarely longer.
const CHUNK_BYTES: usize = 1 << 20;

/// Memory of this process, initially zeros.
pub(crate) struct PagerMemory {
    chunks: Box<[Mutex<Box<[u8]>>]>,
}

impl PagerMemory {
    pub fn new(size_bytes: u64) -> Self {
        let chunks = size_bytes.div_ceil(CHUNK_BYTES as u64);
        Self { chunks: (0..chunks).map(|_| Mutex::new(vec![0; CHUNK_BYTES].into())).collect() }
    }

    /// Calls `f` with each part of the chunks that contains bytes of the range, and the offset of the part in the
    /// range.
    fn walk(&self, at: u64, len_bytes: usize, mut f: impl FnMut(&mut [u8], usize)) -> Result<()> {
        let at = usize::try_from(at).map_err(|_| Errno::IO)?;
        let mut done = 0;
        while done < len_bytes {
            let (chunk, offset) = ((at + done) / CHUNK_BYTES, (at + done) % CHUNK_BYTES);
            let chunk = self.chunks.get(chunk).ok_or(Errno::IO)?;
            let part_bytes = (CHUNK_BYTES - offset).min(len_bytes - done);
            // The contents are consistent even after a panic, because bytes are only copied.
            let mut chunk = chunk.lock().unwrap_or_else(PoisonError::into_inner);
            f(&mut chunk[offset..offset + part_bytes], done);
            done += part_bytes;
        }
        Ok(())
    }
}

impl Memory for PagerMemory {
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
    fn reads_bytes_where_they_were_written() {
        let memory = PagerMemory::new(2 * CHUNK_BYTES as u64);
        let at = CHUNK_BYTES as u64 - 3;
        memory.write(at, &[1, 2, 3, 4, 5]).unwrap();
        let mut found = vec![9];
        memory.read(at - 1, 7, &mut found).unwrap();
        assert_eq!(found, [9, 0, 1, 2, 3, 4, 5, 0]);
        assert!(memory.read(2 * CHUNK_BYTES as u64 - 1, 2, &mut found).is_err());
        assert!(memory.write(u64::MAX, &[0]).is_err());
    }
}
