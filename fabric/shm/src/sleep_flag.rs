//! Sleep flag of a thread, in one word: producers check it after a delivery and wake the thread only if it sleeps.

use crate::fence;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Set by a thread that is about to sleep, read by the threads that deliver work to it.
#[derive(Debug)]
pub struct SleepFlag(AtomicBool);

impl Default for SleepFlag {
    fn default() -> Self {
        Self::new()
    }
}

impl SleepFlag {
    /// Creates the flag of a thread that is awake.
    pub fn new() -> Self {
        fence::asymmetric();
        Self(AtomicBool::new(false))
    }

    /// Must be called before a sleep. The thread finds earlier deliveries by polling once more afterwards; for later
    /// ones, [`SleepFlag::take_wake_duty`] returns true to the producer, which wakes the thread.
    pub fn arm(&self) {
        self.0.store(true, Relaxed);
        fence::heavy();
    }

    /// Must be called after that poll if it found work, and after the sleep.
    pub fn disarm(&self) {
        self.0.store(false, Relaxed);
    }

    /// Producer, after a delivery: returns whether the thread sleeps or is about to. If not, its last poll finds the
    /// delivery.
    #[inline]
    pub fn is_armed(&self) -> bool {
        fence::light();
        self.0.load(Relaxed)
    }

    /// Producer, after a delivery: returns whether the caller must wake the thread. Returns true to one of several
    /// callers.
    #[inline]
    pub fn take_wake_duty(&self) -> bool {
        fence::light();
        self.0.load(Relaxed) && self.0.swap(false, AcqRel)
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! The model was checked to fail without either fence.

    use super::*;
    use crate::sync::atomic::Ordering::{Acquire, Release};
    use loom::sync::Arc;

    #[derive(Default)]
    struct Scene {
        word: SleepFlag,
        left: [AtomicBool; 2],
        woken: AtomicBool,
    }

    impl Scene {
        fn leave(&self, at: usize) {
            self.left[at].store(true, Release);
            if self.word.take_wake_duty() {
                self.woken.store(true, Release);
            }
        }

        fn found(&self) -> [bool; 2] {
            self.left.each_ref().map(|left| left.load(Acquire))
        }
    }

    #[test]
    fn sleeps_through_no_delivery() {
        loom::model(|| {
            let scene = Arc::new(Scene::default());
            let producers = [0, 1].map(|at| {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.leave(at))
            });
            scene.word.arm();
            let found = scene.found();
            for producer in producers {
                producer.join().unwrap();
            }
            // The thread sleeps if it found nothing; in that case the later producer must have woken it.
            if found == [false, false] {
                assert!(scene.woken.load(Acquire), "slept through");
            }
        });
    }
}
