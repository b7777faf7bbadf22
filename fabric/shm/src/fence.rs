//! Asymmetric fences for a Dekker protocol: the frequent side pays nothing, the rare side pays for both.
//!
//! `light` and `heavy` order a store before a later load if one side uses `light` and the other `heavy`. With
//! `membarrier(GLOBAL_EXPEDITED)` the heavy side interrupts every running thread of every registered process, so the
//! light side only needs a compiler fence. Without it both are full fences. Processes exchange the kind that they use
//! ([`asymmetric`]) when they connect, and refuse the connection if the kinds differ.

#[cfg(not(loom))]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
    const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // Copy of REGISTERED, read with one plain load.
    static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes three integers and accesses no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Returns whether `light` is free in this process, and registers the process for it. Must be called before the
    /// other functions.
    pub fn asymmetric() -> bool {
        *REGISTERED.get_or_init(|| {
            let disabled = crate::trusted_variable("FARCALL_NO_MEMBARRIER").is_some();
            let ok = !disabled
                && membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
                && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
            ASYMMETRIC.store(ok, Ordering::Relaxed);
            ok
        })
    }

    /// Fence of the frequent side.
    #[inline]
    pub fn light() {
        if ASYMMETRIC.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Fence of the rare side; it acts for both.
    ///
    /// # Panics
    /// Panics if membarrier fails although the registration succeeded.
    pub fn heavy() {
        fence(Ordering::SeqCst);
        if ASYMMETRIC.load(Ordering::Relaxed) {
            // This cannot fail after the registration succeeded. If it did, continuing would break mutual exclusion.
            assert!(membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED), "membarrier worked at start and fails now");
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::sync::atomic::{Ordering, fence};

    pub fn asymmetric() -> bool {
        false
    }

    pub fn light() {
        fence(Ordering::SeqCst);
    }

    pub fn heavy() {
        fence(Ordering::SeqCst);
    }
}

pub use imp::{asymmetric, heavy, light};
