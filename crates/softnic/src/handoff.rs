//! State of one owner that others may visit only while the owner has left work behind.
//!
//! A queue pair's send side belongs to whoever posts. Only when requests had to wait (no receive at the target, ring
//! full) may the thread that polls the completion queue continue them. So the owner's usual path is one load; the lock
//! is taken only while work waits.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::sync::spin_loop;

/// State that knows whether it has left work behind.
pub(crate) trait LeavesWork {
    /// Whether visitors have something to continue.
    fn has_work(&self) -> bool;
}

pub(crate) struct Handoff<T> {
    /// Whether visitors may enter. Set by the owner alone; cleared only under the lock.
    open: AtomicBool,
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `open` false means that only the owner (one thread, by `owner`'s contract) touches the value; while it is
// true every access holds the lock. The transitions are release/acquire.
unsafe impl<T: Send> Sync for Handoff<T> {}

impl<T: LeavesWork> Handoff<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { open: AtomicBool::new(false), locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Whether work was left behind.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Acquire)
    }

    #[cold]
    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        !self.locked.swap(true, Acquire)
    }

    /// Enters as the owner.
    ///
    /// # Safety
    /// One thread at a time, and not while that thread has a guard.
    #[inline]
    pub(crate) unsafe fn owner(&self) -> HandoffGuard<'_, T> {
        let locked = self.open.load(Acquire);
        if locked {
            self.lock();
        }
        HandoffGuard { of: self, locked }
    }

    /// Enters as a visitor, if there is work and nobody is inside.
    pub(crate) fn visitor(&self) -> Option<HandoffGuard<'_, T>> {
        if !self.open.load(Acquire) || !self.try_lock() {
            return None;
        }
        // Acquire: the owner may have closed and left work anew since the load above, without the lock.
        if self.open.load(Acquire) {
            return Some(HandoffGuard { of: self, locked: true });
        }
        self.locked.store(false, Release);
        None
    }
}

/// Access to the state; leaving decides whether visitors may enter.
pub(crate) struct HandoffGuard<'a, T: LeavesWork> {
    of: &'a Handoff<T>,
    locked: bool,
}

impl<T: LeavesWork> Deref for HandoffGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only for the owner while closed, or for the holder of the lock.
        unsafe { &*self.of.value.get() }
    }
}

impl<T: LeavesWork> DerefMut for HandoffGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed exclusively.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T: LeavesWork> Drop for HandoffGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let has_work = self.has_work();
        if self.locked {
            if !has_work {
                self.of.open.store(false, Release);
            }
            self.of.locked.store(false, Release);
        } else if has_work {
            self.of.open.store(true, Release);
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    struct Counter {
        done: u32,
        left: u32,
    }

    impl LeavesWork for Counter {
        fn has_work(&self) -> bool {
            self.left > 0
        }
    }

    /// Every piece of work is done exactly once, whoever does it, and no two are inside at once (loom would report the
    /// unsynchronised access to the cell through the broken count).
    #[test]
    fn owner_and_visitor_exclude_each_other() {
        let mut builder = loom::model::Builder::new();
        (builder.preemption_bound, builder.max_branches) = (Some(3), 100_000);
        builder.check(|| {
            let shared = Arc::new(Handoff::new(Counter { done: 0, left: 0 }));
            let visitor = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(mut guard) = shared.visitor() {
                            guard.left -= 1;
                            guard.done += 1;
                        }
                        loom::thread::yield_now();
                    }
                })
            };
            for _ in 0..2 {
                // SAFETY: only this thread is the owner.
                unsafe { shared.owner() }.left += 1;
            }
            visitor.join().unwrap();
            // SAFETY: as above.
            let guard = unsafe { shared.owner() };
            assert_eq!(guard.done + guard.left, 2);
        });
    }
}
