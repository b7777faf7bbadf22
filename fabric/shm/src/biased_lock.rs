//! A biased lock: one thread, the owner, uses the state all the time, and another thread can rarely take it over.
//!
//! The receive side of a queue pair is used at every poll by the thread that polls the completion queue. The owner of
//! the queue pair needs it only to reset or destroy the queue pair. In this lock the polling thread is the *owner* and
//! pays two plain stores; the *revoker* pays a process-wide barrier and a short wait.

use std::cell::UnsafeCell;

use crate::fence;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::spin_loop;

/// A lock whose owner enters with two plain stores.
#[repr(C)]
pub struct BiasedLock<T> {
    inside: AtomicBool,
    closed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: owner and revoker exclude each other: each stores its own flag, passes a fence (light or heavy) and then
// loads the other's flag (Dekker). At most one thread is the owner and one the revoker at a time, by the contracts of
// `owner`, `revoke` and `try_revoke`.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self { inside: AtomicBool::new(false), closed: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `work` on the state as the owner; returns `None` while the state is revoked.
    ///
    /// # Safety
    /// At most one thread at a time may call this, and not from within `work`.
    #[inline]
    pub unsafe fn owner<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.inside.store(true, Relaxed);
        fence::light();
        let result = if self.closed.load(Acquire) {
            None
        } else {
            // SAFETY: `closed` was not set after `inside` was set, so a revoker that sets it now waits (`revoke`) or
            // fails (`try_revoke`) until `inside` is cleared below. No other thread is the owner, by the contract of
            // this function.
            Some(work(unsafe { &mut *self.value.get() }))
        };
        self.inside.store(false, Release);
        result
    }

    /// Like [`BiasedLock::revoke`], but returns `None` at once if the owner works on the state now.
    ///
    /// # Safety
    /// At most one thread at a time may be in this function or in [`BiasedLock::revoke`], and not from within `owner`.
    pub unsafe fn try_revoke<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.closed.store(true, Release);
        fence::heavy();
        let is_free = !self.inside.load(Acquire);
        // SAFETY: the owner is not inside, and it checks `closed`, which is set, before it uses the state. No other
        // thread revokes, by the contract of this function.
        let result = is_free.then(|| work(unsafe { &mut *self.value.get() }));
        self.closed.store(false, Release);
        result
    }

    /// Takes the state from its owner for `work`. Waits until the owner leaves the state, at most one execution of its
    /// `work`.
    ///
    /// # Safety
    /// At most one thread at a time may be in this function or in [`BiasedLock::try_revoke`], and not from within
    /// `owner`.
    pub unsafe fn revoke<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.closed.store(true, Release);
        fence::heavy();
        while self.inside.load(Acquire) {
            spin_loop();
        }
        // SAFETY: the owner is not inside, and it checks `closed`, which is set, before it uses the state. No other
        // thread revokes, by the contract of this function.
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

    /// Runs the owner and a revoker, each once. `revoke` returns whether it accessed the state.
    fn both(revoke: fn(&BiasedLock<Checked<u32>>) -> bool) {
        loom::model(move || {
            let shared = Arc::new(BiasedLock::new(Checked::new(0_u32)));
            let revoker = {
                let shared = shared.clone();
                loom::thread::spawn(move || revoke(&shared))
            };
            // SAFETY: this thread is the only owner.
            let worked = unsafe { shared.owner(|cell| cell.with_mut(|n| *n += 1)) };
            let revoked = revoker.join().unwrap();
            // SAFETY: this thread is the only owner.
            let sum = unsafe { shared.owner(|cell| cell.with(|n| *n)) };
            assert_eq!(sum, Some(u32::from(revoked) + u32::from(worked.is_some())));
        });
    }

    #[test]
    fn owner_and_revoker_exclude_each_other() {
        both(|shared| {
            // SAFETY: this thread is the only revoker. loom checks that two threads never access the cell at the same
            // time.
            unsafe { shared.revoke(|cell| cell.with_mut(|n| *n += 1)) };
            true
        });
    }

    #[test]
    fn excludes_the_owner_from_a_revoker_that_never_waits() {
        // SAFETY: this thread is the only revoker.
        both(|shared| unsafe { shared.try_revoke(|cell| cell.with_mut(|n| *n += 1)) }.is_some());
    }
}
