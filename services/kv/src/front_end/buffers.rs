//! The buffers of a thread's connections: accounted, bounded, and returned to the system after a peak.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farcall_drive::HeapTrimmer;

/// Length of the unsent replies of one connection, in bytes, above which no further command is executed for it.
const UNSENT_MAX_BYTES: usize = 1 << 20;

/// The same limit while more than half of the memory for buffers is in use.
const UNSENT_MAX_WHEN_SCARCE_BYTES: usize = 64 << 10;

/// Accounting of the buffers of a thread's connections.
pub(super) struct Buffers {
    max_bytes: usize,
    held_bytes: usize,
    heap_trimmer: HeapTrimmer,
    /// Sum over all threads, for `stats`.
    total_bytes: Arc<AtomicU64>,
}

impl Buffers {
    pub(super) fn new(max_bytes: usize, total_bytes: Arc<AtomicU64>) -> Self {
        Self { max_bytes, held_bytes: 0, heap_trimmer: HeapTrimmer::default(), total_bytes }
    }

    /// Records that a connection uses `now_bytes`, for which `before_bytes` were recorded before.
    #[inline]
    pub(super) fn count(&mut self, before_bytes: usize, now_bytes: usize) {
        if before_bytes != now_bytes {
            self.held_bytes = self.held_bytes + now_bytes - before_bytes;
            self.heap_trimmer.record_use(self.held_bytes);
            // A negative difference wraps around.
            let difference = (now_bytes as u64).wrapping_sub(before_bytes as u64);
            self.total_bytes.fetch_add(difference, Ordering::Relaxed);
        }
    }

    /// Returns the length of the unsent replies of one connection above which no further command is executed for it.
    #[inline]
    pub(super) fn unsent_max_bytes(&self) -> usize {
        if self.held_bytes > self.max_bytes / 2 { UNSENT_MAX_WHEN_SCARCE_BYTES } else { UNSENT_MAX_BYTES }
    }

    /// Returns whether a connection must be closed.
    #[inline]
    pub(super) fn is_over_limit(&self) -> bool {
        self.held_bytes > self.max_bytes
    }

    /// Returns freed memory to the system after a peak, including `spare`, a buffer shared by all connections.
    #[inline]
    pub(super) fn return_after_peak(&mut self, spare: &mut Vec<u8>) {
        self.heap_trimmer.record_use(self.held_bytes + spare.capacity());
        if self.heap_trimmer.is_due(self.held_bytes) {
            *spare = Vec::new();
            self.heap_trimmer.trim(self.held_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connections_hold_is_counted_and_bounded() {
        let total = Arc::new(AtomicU64::new(0));
        let mut buffers = Buffers::new(32 << 20, Arc::clone(&total));
        assert_eq!(buffers.unsent_max_bytes(), UNSENT_MAX_BYTES);
        buffers.count(0, 20 << 20);
        assert_eq!(buffers.unsent_max_bytes(), UNSENT_MAX_WHEN_SCARCE_BYTES);
        assert!(!buffers.is_over_limit());
        buffers.count(0, 13 << 20);
        assert!(buffers.is_over_limit() && total.load(Ordering::Relaxed) == 33 << 20);
        let mut spare = vec![0];
        buffers.return_after_peak(&mut spare);
        assert_eq!(spare.len(), 1, "all is still held");
        buffers.count(20 << 20, 0);
        buffers.count(13 << 20, 1 << 20);
        buffers.return_after_peak(&mut spare);
        assert_eq!((spare.len(), total.load(Ordering::Relaxed)), (0, 1 << 20));
    }
}
