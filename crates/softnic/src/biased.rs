//! State of one resident that a visitor may take over, rarely.
//!
//! A queue pair's receive side is worked by whoever polls the completion queue, at every poll; whoever owns the queue
//! pair needs it only to reset or destroy the pair. The resident pays two plain stores, the visitor a process-wide
//! barrier and a short wait.

use std::cell::UnsafeCell;

use crate::fence;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::spin_loop;

#[repr(C)]
pub(crate) struct Biased<T> {
    inside: AtomicBool,
    closed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: resident and visitor exclude each other: `inside` and `closed` cross with a light and a heavy fence (Dekker);
// there is one of each by the contracts below.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inside: AtomicBool::new(false), closed: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Works on the state as its resident; `None` while a visitor has it.
    ///
    /// # Safety
    /// One thread at a time, not from within itself.
    #[inline]
    pub(crate) unsafe fn resident<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.inside.store(true, Relaxed);
        fence::light();
        let result = if self.closed.load(Acquire) {
            None
        } else {
            // SAFETY: a visitor sets `closed` and then waits for `inside` to clear, which happens below.
            Some(work(unsafe { &mut *self.value.get() }))
        };
        self.inside.store(false, Release);
        result
    }

    /// Works on the state as a visitor. Waits for the resident to leave, at most one turn of its work.
    ///
    /// # Safety
    /// One thread at a time, and not from within `resident`.
    pub(crate) unsafe fn visit<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.closed.store(true, Release);
        fence::heavy();
        while self.inside.load(Acquire) {
            spin_loop();
        }
        // SAFETY: the resident is out and sees `closed` before it comes in again.
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
    fn resident_and_visitor_exclude_each_other() {
        loom::model(|| {
            let shared = Arc::new(Biased::new(Checked::new(0_u32)));
            let visitor = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    // SAFETY: the only visitor. loom checks that the cell is not accessed by two at once.
                    unsafe { shared.visit(|cell| cell.with_mut(|n| *n += 1)) };
                })
            };
            // SAFETY: the only resident.
            let worked = unsafe { shared.resident(|cell| cell.with_mut(|n| *n += 1)) };
            visitor.join().unwrap();
            // SAFETY: as above.
            let sum = unsafe { shared.resident(|cell| cell.with(|n| *n)) };
            assert_eq!(sum, Some(1 + u32::from(worked.is_some())));
        });
    }
}
