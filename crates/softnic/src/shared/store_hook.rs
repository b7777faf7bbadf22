//! Death at the n-th store: how tests prove that a process may be killed or stopped at any instruction.
//!
//! Without the feature `store-hook` a step is nothing and [`arm_store_hook`] reports that it cannot arm.

#[cfg(all(feature = "store-hook", not(loom)))]
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

#[cfg(not(all(feature = "store-hook", not(loom))))]
mod imp {
    #[cfg(not(loom))]
    pub(super) fn arm(_nth: u64, _signal: i32) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn step() {}
}

/// Sends `signal` to this process just before its `nth` store (from 1) to shared memory from now on. Returns whether
/// this build can: it needs the feature `store-hook`.
#[cfg(not(loom))]
#[doc(hidden)]
pub fn arm_store_hook(nth: u64, signal: i32) -> bool {
    imp::arm(nth, signal)
}

/// Called before every store to shared memory.
#[inline(always)]
pub(crate) fn step() {
    imp::step();
}
