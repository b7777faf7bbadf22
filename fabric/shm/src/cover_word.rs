//! Delegation of a sleeping thread's polling to a poller, in one word (RR-Compound, algorithm 2).
//!
//! The owner of the word *covers* it: it delegates its polling. A poller that polls on behalf of the owner ends the
//! delegation once: it *rings* when it finds work for the owner, or *leaves* when it will poll no more. In both cases
//! it wakes the owner.
//!
//! A poller that sleeps must not leave a covered owner without a poller. It arms its [`crate::WakeWord`] and then
//! leaves every covered word; an owner covers its word and then checks whether the poller sleeps. At least one of the
//! two sees the other.

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const UNCOVERED: u32 = 0;
const COVERED: u32 = 1;
const RUNG: u32 = 2;
const LEFT: u32 = 3;

/// The delegation word of one owner and one poller; see the module.
#[derive(Debug)]
pub struct CoverWord(AtomicU32);

/// How a delegation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverEnd {
    /// The owner took it back.
    TakenBack,
    /// The poller found work for the owner.
    Rung,
    /// The poller stopped polling.
    Left,
}

impl Default for CoverWord {
    fn default() -> Self {
        Self::new()
    }
}

impl CoverWord {
    /// Creates the word of an owner that is awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(UNCOVERED))
    }

    /// Owner: delegates its polling. The poller reads the state that the owner published before this call.
    pub fn cover(&self) {
        self.0.store(COVERED, Release);
    }

    /// Owner, awake again: ends the delegation, so that it is not woken any more. A poller that ended the delegation
    /// earlier may still be about to wake it.
    pub fn take_back(&self) -> CoverEnd {
        match self.0.swap(UNCOVERED, AcqRel) {
            RUNG => CoverEnd::Rung,
            LEFT => CoverEnd::Left,
            _ => CoverEnd::TakenBack,
        }
    }

    /// Poller: returns whether it polls on behalf of the owner.
    #[inline]
    pub fn is_covered(&self) -> bool {
        self.0.load(Acquire) == COVERED
    }

    /// Poller, with work for the owner: ends the delegation. Returns whether it must wake the owner now.
    pub fn ring(&self) -> bool {
        self.0.compare_exchange(COVERED, RUNG, AcqRel, Relaxed).is_ok()
    }

    /// Poller, about to sleep: ends the delegation. Returns whether it must wake the owner now.
    pub fn leave(&self) -> bool {
        self.0.compare_exchange(COVERED, LEFT, AcqRel, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! These models were checked to fail without either fence of `WakeWord`, and if the poller does not leave the word
    //! after it armed its own.

    use super::*;
    use crate::WakeWord;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};

    #[derive(Default)]
    struct Scene {
        word: CoverWord,
        poller: WakeWord,
        /// Value that a peer writes, and the last value that the owner has read.
        written: AtomicU64,
        seen: AtomicU64,
        woken: AtomicBool,
    }

    impl Scene {
        /// Polls on behalf of the owner.
        fn poll(&self) {
            let is_new = || self.written.load(Acquire) != self.seen.load(Relaxed);
            if self.word.is_covered() && is_new() && self.word.ring() {
                self.woken.store(true, Release);
            }
        }

        fn poller_sleeps(&self) {
            self.poller.arm();
            if self.word.leave() {
                self.woken.store(true, Release);
            }
        }

        /// Returns whether the owner sleeps and relies on the poller.
        fn owner_sleeps(&self) -> bool {
            let seen = self.written.load(Acquire);
            self.seen.store(seen, Relaxed);
            self.word.cover();
            if self.poller.is_armed() {
                // By events.
                self.word.take_back();
                return false;
            }
            let has_more = self.written.load(Acquire) != seen;
            if has_more {
                self.word.take_back();
            }
            !has_more
        }
    }

    fn check(sleeps: bool) {
        loom::model(move || {
            let scene = Arc::new(Scene::default());
            let peer = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.written.store(1, Release))
            };
            let poller = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || {
                    scene.poll();
                    if sleeps {
                        scene.poller_sleeps();
                    }
                })
            };
            let relies = scene.owner_sleeps();
            peer.join().unwrap();
            poller.join().unwrap();
            if !sleeps {
                // The poller continues to poll.
                scene.poll();
            }
            let is_news = scene.written.load(Acquire) != scene.seen.load(Relaxed);
            assert!(!relies || !is_news || scene.woken.load(Acquire), "slept through");
            assert!(!relies || !sleeps || scene.woken.load(Acquire), "left behind");
        });
    }

    #[test]
    fn news_ring_an_owner_that_is_covered() {
        check(false);
    }

    #[test]
    fn a_poller_that_sleeps_leaves_no_owner_behind() {
        check(true);
    }

    #[test]
    fn ends_a_cover_once_without_a_spurious_wake_up() {
        loom::model(|| {
            let scene = Arc::new(Scene::default());
            scene.word.cover();
            let poller = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || (scene.word.ring(), scene.word.leave()))
            };
            let end = scene.word.take_back();
            let (rung, left) = poller.join().unwrap();
            assert!(!(rung && left));
            let told = if rung { CoverEnd::Rung } else { CoverEnd::TakenBack };
            // `leave` succeeds only if `ring` failed before the word was covered, which is impossible here.
            assert_eq!((end, left), (told, false));
        });
    }
}
