//! Freed memory that the allocator retains.

use std::time::{Duration, Instant};

/// Minimum number of bytes to return; fewer do not justify walking the lists of the allocator.
const RETURN_MIN_BYTES: usize = 256 << 10;

/// Minimum interval between two returns.
const RETURN_PERIOD: Duration = Duration::from_secs(1);

/// Decides when freed memory is returned to the system: after a peak, at most once a second.
#[derive(Debug, Default)]
pub struct HeapTrimmer {
    peak_bytes: usize,
    returned: Option<Instant>,
}

impl HeapTrimmer {
    /// Records that `held_bytes` bytes are in use.
    #[inline]
    pub fn record_use(&mut self, held_bytes: usize) {
        self.peak_bytes = self.peak_bytes.max(held_bytes);
    }

    /// Returns whether memory should be returned, now that only `held_bytes` bytes are in use after a peak.
    #[inline]
    pub fn is_due(&self, held_bytes: usize) -> bool {
        self.peak_bytes >= held_bytes.saturating_add(RETURN_MIN_BYTES)
            && self.returned.is_none_or(|returned| returned.elapsed() >= RETURN_PERIOD)
    }

    /// Returns free memory to the system if the allocator is glibc's.
    #[cold]
    pub fn trim(&mut self, held_bytes: usize) {
        (self.peak_bytes, self.returned) = (held_bytes, Some(Instant::now()));
        #[cfg(target_env = "gnu")]
        // SAFETY: `malloc_trim` locks and walks the lists of the allocator, and frees only memory that is not in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Limits the memory that glibc's allocator retains. By default it raises the amount retained at the end of each
/// thread's heap to twice the largest buffer ever freed, and `malloc_trim` does not release that part. For programs,
/// once at the start: the setting applies to the process.
pub fn limit_retained_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` sets a parameter of the allocator under the lock of the allocator.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, RETURN_MIN_BYTES as libc::c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_after_a_peak_but_not_after_each() {
        let mut memory = HeapTrimmer::default();
        memory.record_use(100 << 20);
        assert!(!memory.is_due(100 << 20) && memory.is_due(10 << 20));
        memory.trim(10 << 20);
        memory.record_use(100 << 20);
        assert!(!memory.is_due(0), "so soon");
        memory.returned = memory.returned.and_then(|returned| returned.checked_sub(RETURN_PERIOD));
        assert!(memory.is_due(0));
    }
}
