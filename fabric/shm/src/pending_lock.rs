//! A lock that its owner skips while no work is pending: helpers may enter only while the owner has left work behind.
//!
//! The send side of a queue pair belongs to the thread that posts. Only when requests had to wait (no receive at the
//! target, ring full) may the thread that polls the completion queue continue them. The owner's usual path is thus one
//! load; it acquires the lock only while work is pending.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{spin_loop, yield_now};

/// Spins between two calls of `yield_now`.
const TURNS_PER_YIELD: u32 = 128;

/// State that reports whether it has pending work.
pub trait PendingWork {
    /// Returns whether helpers have work to continue.
    fn has_pending(&self) -> bool;
}

/// State of one owner that helpers may enter only while work is pending.
#[repr(C)]
pub struct PendingLock<T> {
    /// Whether helpers may enter. Set without the lock by the owner alone; otherwise changed only under the lock.
    open: AtomicBool,
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: while `open` is false, only the owner accesses the value, and `owner`'s contract admits one thread. While it
// is true, every access holds the lock. Both flags change with release stores and are read with acquire loads.
unsafe impl<T: Send> Sync for PendingLock<T> {}

impl<T: PendingWork> PendingLock<T> {
    /// Creates an unlocked lock without pending work.
    pub fn new(value: T) -> Self {
        Self { open: AtomicBool::new(false), locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Returns whether work is pending.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.open.load(Acquire)
    }

    #[cold]
    fn lock(&self) {
        let mut turns = 0;
        while !self.try_lock() {
            // Only read while waiting, so that the cache line stays shared.
            while self.locked.load(Relaxed) {
                // The holder may have been preempted on the processor on which this thread spins.
                turns += 1;
                if turns % TURNS_PER_YIELD == 0 { yield_now() } else { spin_loop() }
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Not a swap: a failed attempt writes nothing. (loom may also order a failed swap after an unlock that it did
        // not see, and then reports a lock without a holder.)
        self.locked.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// Enters as the owner.
    ///
    /// # Safety
    /// At most one thread at a time may be the owner, and not while it holds a guard.
    #[inline]
    pub unsafe fn owner(&self) -> PendingGuard<'_, T> {
        let locked = self.open.load(Acquire);
        if locked {
            self.lock();
        }
        PendingGuard { of: self, locked }
    }

    /// Enters as a helper if work is pending; waits for the thread that is inside.
    #[cold]
    pub fn helper_after_wait(&self) -> Option<PendingGuard<'_, T>> {
        if !self.open.load(Acquire) {
            return None;
        }
        self.lock();
        self.helper_inside()
    }

    /// Enters as a helper if work is pending and no thread is inside.
    pub fn helper(&self) -> Option<PendingGuard<'_, T>> {
        if !self.open.load(Acquire) || !self.try_lock() {
            return None;
        }
        self.helper_inside()
    }

    /// With the lock held: enters if work is still pending.
    fn helper_inside(&self) -> Option<PendingGuard<'_, T>> {
        // Acquire: since the first load the owner may have closed the lock and left new work without taking the lock.
        if self.open.load(Acquire) {
            return Some(PendingGuard { of: self, locked: true });
        }
        self.locked.store(false, Release);
        None
    }
}

/// Access to the state. Dropping it decides whether helpers may enter.
pub struct PendingGuard<'a, T: PendingWork> {
    of: &'a PendingLock<T>,
    locked: bool,
}

impl<T: PendingWork> Deref for PendingGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only for the owner while `open` is false, or for the holder of the lock. In both cases
        // no other thread accesses the value.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: PendingWork> DerefMut for PendingGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a guard exists only for the owner while `open` is false, or for the holder of the lock; the guard is
        // borrowed exclusively here.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T: PendingWork> Drop for PendingGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let has_work = self.has_pending();
        if self.locked {
            // Also stored if it remains true: a helper may have cleared it between the owner's load and its lock.
            self.of.open.store(has_work, Release);
            self.of.locked.store(false, Release);
        } else if has_work {
            self.of.open.store(true, Release);
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! The model was checked to fail if `drop` under the lock only clears `open`, if the second load of `helper` is
    //! relaxed, or if any store of `drop` is relaxed. (The increments of a common counter order no memory; they make
    //! loom explore all interleavings, see `wc_ring`.)

    use super::*;
    use loom::cell::UnsafeCell as Checked;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// Work in a cell that loom checks: loom reports two threads inside at once, or one that misses the last write.
    struct Work(Checked<Counts>);

    #[derive(Clone, Copy)]
    struct Counts {
        done: u32,
        left: u32,
    }

    impl Work {
        fn counts(&self) -> Counts {
            // SAFETY: reached only through a guard; the model checks that guards exclude each other.
            self.0.with(|counts| unsafe { *counts })
        }

        fn add(&mut self) {
            // SAFETY: reached only through a guard; the model checks that guards exclude each other.
            self.0.with_mut(|counts| unsafe { (*counts).left += 1 });
        }

        fn finish(&mut self) {
            // SAFETY: reached only through a guard; the model checks that guards exclude each other.
            self.0.with_mut(|counts| unsafe {
                *counts = Counts { done: (*counts).done + (*counts).left, left: 0 }
            });
        }
    }

    impl PendingWork for Work {
        fn has_pending(&self) -> bool {
            self.counts().left > 0
        }
    }

    /// Runs `owner` against a helper that enters up to twice. Afterwards each unit of work is done once or still
    /// pending, and helpers may enter exactly if some is pending: otherwise it would wait forever.
    fn check(total: u32, owner: impl Fn(&PendingLock<Work>, &dyn Fn()) + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(PendingLock::new(Work(Checked::new(Counts { done: 0, left: 0 }))));
            let turns = Arc::new(AtomicU64::new(0));
            let helper = {
                let (shared, turns) = (shared.clone(), turns.clone());
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        turns.fetch_add(1, Relaxed);
                        if let Some(mut guard) = shared.helper() {
                            assert!(guard.has_pending(), "let in without work");
                            guard.finish();
                        }
                    }
                })
            };
            owner(&shared, &|| drop(turns.fetch_add(1, Relaxed)));
            helper.join().unwrap();
            let is_open = shared.has_pending();
            // SAFETY: only this thread is the owner.
            let left = unsafe { shared.owner() }.counts();
            assert_eq!((left.done + left.left, is_open), (total, left.left > 0));
        });
    }

    #[test]
    fn work_that_is_added_while_a_helper_finishes_is_not_shut_in() {
        check(2, |shared, turn| {
            for _ in 0..2 {
                turn();
                // SAFETY: only this thread is the owner.
                unsafe { shared.owner() }.add();
            }
        });
    }

    #[test]
    fn a_helper_between_two_openings_sees_the_second() {
        check(2, |shared, turn| {
            turn();
            // SAFETY: only this thread is the owner.
            unsafe { shared.owner() }.add();
            turn();
            // SAFETY: only this thread is the owner.
            unsafe { shared.owner() }.finish();
            turn();
            // SAFETY: only this thread is the owner.
            unsafe { shared.owner() }.add();
        });
    }
}
