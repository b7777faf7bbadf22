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

    #[test]
    fn owner_and_revoker_exclude_each_other() {
        loom::model(|| {
            let shared = Arc::new(BiasedLock::new(Checked::new(0_u32)));
            let revoker = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    // SAFETY: the only revoker. loom checks that the cell is not accessed by two at once.
                    unsafe { shared.revoke(|cell| cell.with_mut(|n| *n += 1)) };
                })
            };
            // SAFETY: the only owner.
            let worked = unsafe { shared.owner(|cell| cell.with_mut(|n| *n += 1)) };
            revoker.join().unwrap();
            // SAFETY: as above.
            let sum = unsafe { shared.owner(|cell| cell.with(|n| *n)) };
            assert_eq!(sum, Some(1 + u32::from(worked.is_some())));
        });
    }
}
