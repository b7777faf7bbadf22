//! Freed memory that the allocator still keeps.

use std::time::{Duration, Instant};

/// Less is not worth the way through the allocator's lists.
const RETURN_MIN_BYTES: usize = 256 << 10;

/// Nor is it worth it more often.
const RETURN_PERIOD: Duration = Duration::from_secs(1);

/// When freed memory goes back to the system: after a peak, once a second at most.
#[derive(Debug, Default)]
pub struct KeptMemory {
    peak_bytes: usize,
    returned: Option<Instant>,
}

impl KeptMemory {
    /// So many bytes are held.
    #[inline]
    pub fn saw(&mut self, held_bytes: usize) {
        self.peak_bytes = self.peak_bytes.max(held_bytes);
    }

    /// Whether a peak is over, now that so many bytes are held.
    #[inline]
    pub fn is_due(&self, held_bytes: usize) -> bool {
        self.peak_bytes >= held_bytes.saturating_add(RETURN_MIN_BYTES)
            && self.returned.is_none_or(|returned| returned.elapsed() >= RETURN_PERIOD)
    }

    /// Returns it, where the allocator is glibc's.
    #[cold]
    pub fn give_back(&mut self, held_bytes: usize) {
        (self.peak_bytes, self.returned) = (held_bytes, Some(Instant::now()));
        #[cfg(target_env = "gnu")]
        // SAFETY: locks and walks the allocator's own lists; frees nothing that is in use.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Keeps glibc's allocator from keeping ever more: by itself it raises what it keeps at the end of each thread's heap to
/// twice the largest buffer that was ever freed, and `malloc_trim` does not reach there. For programs, once at the
/// start: it holds for the whole process.
pub fn bound_kept_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's; the call takes its lock.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, RETURN_MIN_BYTES as libc::c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_after_a_peak_and_not_after_each() {
        let mut memory = KeptMemory::default();
        memory.saw(100 << 20);
        assert!(!memory.is_due(100 << 20) && memory.is_due(10 << 20));
        memory.give_back(10 << 20);
        memory.saw(100 << 20);
        assert!(!memory.is_due(0), "so soon");
        memory.returned = memory.returned.and_then(|returned| returned.checked_sub(RETURN_PERIOD));
        assert!(memory.is_due(0));
    }
}
