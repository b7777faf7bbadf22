//! Asymmetric fences for flags that cross (Dekker): the frequent side pays nothing, the rare side pays for both.
//!
//! `light` and `heavy` order a store before a later load when the two sides use one each. With
//! `membarrier(GLOBAL_EXPEDITED)` the heavy side interrupts every running thread of every registered process, so the
//! light side needs only to stop the compiler. Without it both are full fences. Processes tell each other which kind
//! they use when they meet ([`asymmetric`]) and do not connect if they differ.

#[cfg(not(loom))]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
    const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // A copy of REGISTERED that costs one plain load.
    static ASYMMETRIC: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Whether `light` costs nothing here; registers this process for it. To be called before any other function.
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

    /// The frequent side's fence.
    #[inline]
    pub fn light() {
        if ASYMMETRIC.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The rare side's fence, for both.
    ///
    /// # Panics
    /// If the kernel refuses what it granted at registration.
    pub fn heavy() {
        fence(Ordering::SeqCst);
        if ASYMMETRIC.load(Ordering::Relaxed) {
            // It cannot fail after it has succeeded at registration; if it did, going on would break mutual exclusion.
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
