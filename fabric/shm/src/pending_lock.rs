//! A lock that its owner skips while nothing is pending: others may enter only while the owner has left work behind.
//!
//! A queue pair's send side belongs to whoever posts. Only when requests had to wait (no receive at the target, ring
//! full) may the thread that polls the completion queue continue them. So the owner's usual path is one load; the lock
//! is taken only while work waits.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{spin_loop, yield_now};

/// Turns between two offers of the processor to others.
const TURNS_PER_YIELD: u32 = 128;

/// State that knows whether it has left work behind.
pub trait PendingWork {
    /// Whether helpers have something to continue.
    fn has_pending(&self) -> bool;
}

/// State of one owner that others may enter only while work is pending.
#[repr(C)]
pub struct PendingLock<T> {
    /// Whether helpers may enter. Set by the owner alone; otherwise changed only under the lock.
    open: AtomicBool,
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `open` false means that only the owner (one thread, by `owner`'s contract) touches the value; while it is
// true every access holds the lock. The transitions are release/acquire.
unsafe impl<T: Send> Sync for PendingLock<T> {}

impl<T: PendingWork> PendingLock<T> {
    /// A lock that nobody holds, with nothing pending.
    pub fn new(value: T) -> Self {
        Self { open: AtomicBool::new(false), locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Whether work was left behind.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.open.load(Acquire)
    }

    #[cold]
    fn lock(&self) {
        let mut turns = 0;
        while !self.try_lock() {
            // Only reads while it waits, so that the line stays shared.
            while self.locked.load(Relaxed) {
                // Whoever is inside may have lost the processor that we turn on.
                turns += 1;
                if turns % TURNS_PER_YIELD == 0 { yield_now() } else { spin_loop() }
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Not a swap: who fails writes nothing. (loom may also order a failed swap after the unlock it did not see, and
        // so invents a lock that nobody holds.)
        self.locked.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// Enters as the owner.
    ///
    /// # Safety
    /// One thread at a time, and not while that thread has a guard.
    #[inline]
    pub unsafe fn owner(&self) -> PendingGuard<'_, T> {
        let locked = self.open.load(Acquire);
        if locked {
            self.lock();
        }
        PendingGuard { of: self, locked }
    }

    /// Enters as a helper, if there is work; waits for who is inside.
    #[cold]
    pub fn helper_after_wait(&self) -> Option<PendingGuard<'_, T>> {
        if !self.open.load(Acquire) {
            return None;
        }
        self.lock();
        self.helper_inside()
    }

    /// Enters as a helper, if there is work and nobody is inside.
    pub fn helper(&self) -> Option<PendingGuard<'_, T>> {
        if !self.open.load(Acquire) || !self.try_lock() {
            return None;
        }
        self.helper_inside()
    }

    /// With the lock held: stays if there is work still.
    fn helper_inside(&self) -> Option<PendingGuard<'_, T>> {
        // Acquire: the owner may have closed and left work anew since the first look, without the lock.
        if self.open.load(Acquire) {
            return Some(PendingGuard { of: self, locked: true });
        }
        self.locked.store(false, Release);
        None
    }
}

/// Access to the state; leaving decides whether helpers may enter.
pub struct PendingGuard<'a, T: PendingWork> {
    of: &'a PendingLock<T>,
    locked: bool,
}

impl<T: PendingWork> Deref for PendingGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only for the owner while closed, or for the holder of the lock.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: PendingWork> DerefMut for PendingGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T: PendingWork> Drop for PendingGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let has_work = self.has_pending();
        if self.locked {
            // Also when it stays open: a helper may have closed it between the owner's look and the owner's lock.
            self.of.open.store(has_work, Release);
            self.of.locked.store(false, Release);
        } else if has_work {
            self.of.open.store(true, Release);
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That the model can fail was tried by hand: it does if `drop` under the lock only ever closes, if the second load
    //! of `helper` is relaxed, or if any store of `drop` is relaxed. (The steps on a common counter order no memory;
    //! they make loom try all the turns, see `wc_ring`.)

    use super::*;
    use loom::cell::UnsafeCell as Checked;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// Work in a cell that loom watches: it reports two threads inside at once, or one that misses what the last wrote.
    struct Work(Checked<Counts>);

    #[derive(Clone, Copy)]
    struct Counts {
        done: u32,
        left: u32,
    }

    impl Work {
        fn counts(&self) -> Counts {
            // SAFETY: reached through a guard only, which is what the model checks.
            self.0.with(|counts| unsafe { *counts })
        }

        fn add(&mut self) {
            // SAFETY: as above.
            self.0.with_mut(|counts| unsafe { (*counts).left += 1 });
        }

        fn finish(&mut self) {
            // SAFETY: as above.
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

    /// Runs `owner` against a helper that looks twice. Afterwards every piece of work is done once or still there, and
    /// helpers may enter exactly if some is left: work behind a closed door would wait for ever.
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
            // SAFETY: as above.
            unsafe { shared.owner() }.finish();
            turn();
            // SAFETY: as above.
            unsafe { shared.owner() }.add();
        });
    }
}
