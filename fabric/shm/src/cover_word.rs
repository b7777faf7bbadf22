//! Whether somebody looks on behalf of a thread that sleeps, in one word (RR-Compound, algorithm 2).
//!
//! The owner of the word says that it wants to be *covered*. A poller that looks from then on ends that once: it *rings*
//! when it sees news, or *leaves* when it will look no more; after either it wakes the owner. A poller that sleeps
//! leaves nobody behind: it arms its [`crate::WakeWord`], then leaves every word that is covered; an owner covers its
//! word, then looks whether the poller sleeps. One of the two sees the other.

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const UNCOVERED: u32 = 0;
const COVERED: u32 = 1;
const RUNG: u32 = 2;
const LEFT: u32 = 3;

/// See the module. One owner, one poller.
#[derive(Debug)]
pub struct CoverWord(AtomicU32);

/// How a cover had ended when its owner took it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverEnd {
    /// Not before that.
    TakenBack,
    /// The poller saw news.
    Rung,
    /// The poller looks no more.
    Left,
}

impl Default for CoverWord {
    fn default() -> Self {
        Self::new()
    }
}

impl CoverWord {
    /// Of an owner who is awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(UNCOVERED))
    }

    /// Owner: the poller may look from now on, at what the owner has told before of what it knows.
    pub fn cover(&self) {
        self.0.store(COVERED, Release);
    }

    /// Owner, awake again: nobody wakes it any more. (Who has ended the cover before may be about to.)
    pub fn take_back(&self) -> CoverEnd {
        match self.0.swap(UNCOVERED, AcqRel) {
            RUNG => CoverEnd::Rung,
            LEFT => CoverEnd::Left,
            _ => CoverEnd::TakenBack,
        }
    }

    /// Poller: whether to look.
    #[inline]
    pub fn is_covered(&self) -> bool {
        self.0.load(Acquire) == COVERED
    }

    /// Poller, with news: whether it is to wake the owner now.
    pub fn ring(&self) -> bool {
        self.0.compare_exchange(COVERED, RUNG, AcqRel, Relaxed).is_ok()
    }

    /// Poller, about to sleep: whether it is to wake the owner now.
    pub fn leave(&self) -> bool {
        self.0.compare_exchange(COVERED, LEFT, AcqRel, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That the models can fail was tried by hand: without either fence of `WakeWord`, without the leaving after it was
    //! armed.

    use super::*;
    use crate::WakeWord;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};

    #[derive(Default)]
    struct Scene {
        word: CoverWord,
        poller: WakeWord,
        /// What a peer writes, and what the owner has seen of it.
        written: AtomicU64,
        seen: AtomicU64,
        woken: AtomicBool,
    }

    impl Scene {
        /// The poller's look.
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

        /// Whether the owner sleeps and relies on the poller.
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
                // It goes on looking.
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
    fn a_cover_ends_once_and_nobody_is_woken_for_one_that_was_taken_back() {
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
            // Left only if the ring came before the cover was seen, which it cannot here.
            assert_eq!((end, left), (told, false));
        });
    }
}
