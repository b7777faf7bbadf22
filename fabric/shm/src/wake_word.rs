//! Whether a thread sleeps, in one word: whoever leaves something for it looks there, and wakes it only if it sleeps.

use crate::fence;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Set by a thread that is about to sleep, read by those who leave something where it looks.
#[derive(Debug)]
pub struct WakeWord(AtomicBool);

impl Default for WakeWord {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeWord {
    /// Of a thread that is awake.
    pub fn new() -> Self {
        fence::asymmetric();
        Self(AtomicBool::new(false))
    }

    /// To be called before a sleep. What was left before is found by one more look; whoever leaves something later is
    /// told by [`WakeWord::must_wake`].
    pub fn arm(&self) {
        self.0.store(true, Relaxed);
        fence::heavy();
    }

    /// After that look, if it found something, and after the sleep.
    pub fn disarm(&self) {
        self.0.store(false, Relaxed);
    }

    /// Whether the thread sleeps, or is about to, as seen by somebody who has left something: if not, its last look
    /// finds that.
    #[inline]
    pub fn is_armed(&self) -> bool {
        fence::light();
        self.0.load(Relaxed)
    }

    /// To be called by whoever has left something: whether he has to wake the thread. One of several is told so.
    #[inline]
    pub fn must_wake(&self) -> bool {
        fence::light();
        self.0.load(Relaxed) && self.0.swap(false, AcqRel)
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That the model can fail was tried by hand: it does without either fence.

    use super::*;
    use crate::sync::atomic::Ordering::{Acquire, Release};
    use loom::sync::Arc;

    #[derive(Default)]
    struct Scene {
        word: WakeWord,
        left: [AtomicBool; 2],
        woken: AtomicBool,
    }

    impl Scene {
        fn leave(&self, at: usize) {
            self.left[at].store(true, Release);
            if self.word.must_wake() {
                self.woken.store(true, Release);
            }
        }

        fn found(&self) -> [bool; 2] {
            self.left.each_ref().map(|left| left.load(Acquire))
        }
    }

    #[test]
    fn nothing_is_slept_through() {
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
            // It sleeps if it found nothing; then it was woken, by whoever came later.
            if found == [false, false] {
                assert!(scene.woken.load(Acquire), "slept through");
            }
        });
    }
}
