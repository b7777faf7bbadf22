//! Accounting of the bytes that a server thread stores for its clients in addition to their slots.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Total of all clients of a thread. Threads that answer deferred calls update it as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferedTotal(Arc<Totals>);

#[derive(Debug, Default)]
struct Totals {
    bytes: AtomicUsize,
    /// Maximum since [`BufferedTotal::take_peak_bytes`] was last called.
    peak_bytes: AtomicUsize,
}

impl BufferedTotal {
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until they are dropped.
    pub fn count(&self, bytes: Vec<u8>) -> Buffered {
        self.add(bytes.len());
        Buffered { bytes, total: self.clone() }
    }

    fn add(&self, len_bytes: usize) {
        let now_bytes = self.0.bytes.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        self.0.peak_bytes.fetch_max(now_bytes, Ordering::Relaxed);
    }

    /// Returns the maximum total since the last call of this function.
    pub fn take_peak_bytes(&self) -> usize {
        self.0.peak_bytes.swap(0, Ordering::Relaxed)
    }
}

/// Bytes that are counted until they are dropped.
#[derive(Debug)]
pub(crate) struct Buffered {
    bytes: Vec<u8>,
    total: BufferedTotal,
}

impl Buffered {
    pub fn append(&mut self, bytes: &[u8]) {
        self.total.add(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }
}

impl Deref for Buffered {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        self.total.0.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_as_long_as_they_are_kept() {
        let total = BufferedTotal::default();
        let mut first = total.count(vec![1; 10]);
        let second = total.count(Vec::with_capacity(1000));
        assert_eq!(total.bytes(), 10);
        first.append(&[2; 5]);
        assert_eq!((total.bytes(), first.len(), second.len()), (15, 15, 0));
        total.count(vec![3; 100]);
        assert_eq!((total.take_peak_bytes(), total.bytes()), (115, 15));
        drop((first, second));
        assert_eq!(total.bytes(), 0);
    }
}
