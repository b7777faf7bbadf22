//! Death at the n-th store: how tests prove that a process may be killed or stopped at any instruction.
//!
//! It exists where this crate is compiled with debug assertions: in debug builds, and in the profile `release-test`. So
//! neither a feature nor a dependency that another package asks for can bring it into a release build.

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
            // SAFETY: kill of our own process with a signal that the test chose.
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

/// Sends `signal` to this process just before its `nth` store (from 1) to shared memory from now on. Returns whether
/// this build can: it needs debug assertions.
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
        // The 0th store never comes.
        assert_eq!(super::arm_store_hook(0, 0), cfg!(debug_assertions));
    }
}
