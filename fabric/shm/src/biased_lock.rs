//! A biased lock: state that one thread, its owner, uses all the time, and that another may take from it, rarely.
//!
//! A queue pair's receive side is worked by whoever polls the completion queue, at every poll; whoever owns the queue
//! pair needs it only to reset or destroy the pair. The owner pays two plain stores, who revokes a process-wide
//! barrier and a short wait.

use std::cell::UnsafeCell;

use crate::fence;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::spin_loop;

/// A lock whose usual owner enters with two plain stores.
#[repr(C)]
pub struct BiasedLock<T> {
    inside: AtomicBool,
    closed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: owner and revoker exclude each other: `inside` and `closed` cross with a light and a heavy fence (Dekker);
// there is one of each by the contracts below.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> Self {
        Self { inside: AtomicBool::new(false), closed: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Works on the state as its owner; `None` while it is revoked.
    ///
    /// # Safety
    /// One thread at a time, not from within itself.
    #[inline]
    pub unsafe fn owner<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.inside.store(true, Relaxed);
        fence::light();
        let result = if self.closed.load(Acquire) {
            None
        } else {
            // SAFETY: `revoke` sets `closed` and then waits for `inside` to clear, which happens below.
            Some(work(unsafe { &mut *self.value.get() }))
        };
        self.inside.store(false, Release);
        result
    }

    /// As [`BiasedLock::revoke`], unless the owner works on the state now; never waits.
    ///
    /// # Safety
    /// One revoker at a time, and not from within `owner`.
    pub unsafe fn try_revoke<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.closed.store(true, Release);
        fence::heavy();
        let is_free = !self.inside.load(Acquire);
        // SAFETY: the owner is out and sees `closed` before it comes in again.
        let result = is_free.then(|| work(unsafe { &mut *self.value.get() }));
        self.closed.store(false, Release);
        result
    }

    /// Takes the state from its owner for `work`. Waits for the owner to leave, at most one turn of its work.
    ///
    /// # Safety
    /// One thread at a time, and not from within `owner`.
    pub unsafe fn revoke<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.closed.store(true, Release);
        fence::heavy();
        while self.inside.load(Acquire) {
            spin_loop();
        }
        // SAFETY: the owner is out and sees `closed` before it comes in again.
        let result = work(unsafe { &mut *self.value.get() });
        self.closed.store(false, Release);
        result
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell as Checked;
    use loom::sync::Arc;

    /// The owner and a revoker, each once; what `revoke` tells is whether it worked on the state.
    fn both(revoke: fn(&BiasedLock<Checked<u32>>) -> bool) {
        loom::model(move || {
            let shared = Arc::new(BiasedLock::new(Checked::new(0_u32)));
            let revoker = {
                let shared = shared.clone();
                loom::thread::spawn(move || revoke(&shared))
            };
            // SAFETY: the only owner.
            let worked = unsafe { shared.owner(|cell| cell.with_mut(|n| *n += 1)) };
            let revoked = revoker.join().unwrap();
            // SAFETY: as above.
            let sum = unsafe { shared.owner(|cell| cell.with(|n| *n)) };
            assert_eq!(sum, Some(u32::from(revoked) + u32::from(worked.is_some())));
        });
    }

    #[test]
    fn owner_and_revoker_exclude_each_other() {
        both(|shared| {
            // SAFETY: the only revoker. loom checks that the cell is not accessed by two at once.
            unsafe { shared.revoke(|cell| cell.with_mut(|n| *n += 1)) };
            true
        });
    }

    #[test]
    fn excludes_the_owner_from_a_revoker_that_never_waits() {
        // SAFETY: as above.
        both(|shared| unsafe { shared.try_revoke(|cell| cell.with_mut(|n| *n += 1)) }.is_some());
    }
}
