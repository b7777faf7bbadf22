//! A signal at the n-th store: tests use it to show that a process may be killed or stopped at any instruction.
//!
//! The hook exists if this crate is compiled with debug assertions: in debug builds, and in the profile `release-test`.
//! Hence no feature or dependency of another package can enable it in a release build.

#[cfg(debug_assertions)]
mod imp {
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

    static LEFT: AtomicU64 = AtomicU64::new(0);
    static SIGNAL: AtomicI32 = AtomicI32::new(0);

    pub(super) fn arm(nth: u64, signal: i32) -> bool {
        SIGNAL.store(signal, Ordering::Relaxed);
        LEFT.store(nth, Ordering::Relaxed);
        true
    }

    #[inline]
    pub(super) fn step() {
        if LEFT.load(Ordering::Relaxed) == 0 {
            return;
        }
        if LEFT.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: kill takes two integers; it sends the signal that the test chose to this process.
            unsafe { libc::kill(libc::getpid(), SIGNAL.load(Ordering::Relaxed)) };
        }
    }
}

#[cfg(not(debug_assertions))]
mod imp {
    pub(super) fn arm(_nth: u64, _signal: i32) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn step() {}
}

/// Sends `signal` to this process just before its `nth` store (from 1) to shared memory after this call. Returns
/// whether this build supports it: it needs debug assertions.
#[doc(hidden)]
pub fn arm_store_hook(nth: u64, signal: i32) -> bool {
    imp::arm(nth, signal)
}

/// Must be called before every store to shared memory.
#[inline(always)]
pub fn before_store() {
    imp::step();
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hook_exists_exactly_in_builds_with_debug_assertions() {
        // Store number 0 never occurs.
        assert_eq!(super::arm_store_hook(0, 0), cfg!(debug_assertions));
    }
}
