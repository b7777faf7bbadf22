//! Reusable buffers of long requests. Memory newly allocated from the kernel costs a page fault per 4 KiB.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Maximum number of cached buffers: one for each of a few requests, and those of its runs.
const CACHED_MAX: usize = 16;

/// Cache of unused buffers. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// Returns a buffer of this length with unspecified content.
    pub fn take(&self, len_bytes: usize) -> Vec<u8> {
        let mut buffer = self.unused(len_bytes);
        buffer.resize(len_bytes, 0);
        buffer
    }

    /// Caches a buffer that is no longer used.
    pub fn recycle(&self, buffer: Vec<u8>) {
        self.with(|cached| {
            if cached.len() < CACHED_MAX && buffer.capacity() > 0 {
                cached.push(buffer);
            }
        });
    }

    /// Returns a copy of these bytes. Its buffer returns to the cache when the last reference is dropped.
    pub fn copy(&self, bytes: &[u8]) -> Bytes {
        let mut buffer = self.unused(bytes.len());
        buffer.clear();
        buffer.extend_from_slice(bytes);
        Bytes::from_owner(LentBuffer { buffer, cache: self.clone() })
    }

    /// Returns a cached buffer, preferably of this length: another one would first have to be filled with zeros.
    fn unused(&self, len_bytes: usize) -> Vec<u8> {
        self.with(|cached| {
            let alike = cached.iter().rposition(|buffer| buffer.len() == len_bytes);
            let chosen = alike.or_else(|| cached.len().checked_sub(1));
            chosen.map(|at| cached.swap_remove(at)).unwrap_or_default()
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> T {
        // The vector is consistent after a panic.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct LentBuffer {
    buffer: Vec<u8>,
    cache: Buffers,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        self.cache.recycle(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycles_a_bounded_number_of_buffers() {
        let buffers = Buffers::default();
        let first = buffers.copy(b"abc");
        let at = first.as_ptr();
        let part = first.slice(1..);
        drop(first);
        assert_eq!((&part[..], buffers.with(|cached| cached.len())), (&b"bc"[..], 0), "somebody has it");
        drop(part);
        assert_eq!(buffers.copy(b"xy").as_ptr(), at);
        let alike = [vec![0; 3], vec![0; 7], vec![0; 5]];
        let at = alike[1].as_ptr();
        alike.into_iter().for_each(|buffer| buffers.recycle(buffer));
        let taken = buffers.take(7);
        assert_eq!(taken.as_ptr(), at);
        let many: Vec<Bytes> = (0..2 * CACHED_MAX as u8).map(|byte| buffers.copy(&[byte])).collect();
        assert!(many.iter().zip(0..).all(|(bytes, byte)| bytes[..] == [byte]));
        drop(many);
        assert_eq!(buffers.with(|cached| cached.len()), CACHED_MAX);
    }
}
