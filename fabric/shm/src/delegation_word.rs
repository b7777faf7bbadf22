//! Delegation of a sleeping thread's polling to a poller, in one word (RR-Compound, algorithm 2).
//!
//! The owner of the word *delegates* its polling. A poller that polls on behalf of the owner ends the delegation once:
//! it *signals* when it finds work for the owner, or *releases* the word when it will poll no more. In both cases it
//! wakes the owner.
//!
//! A poller that sleeps must not keep a delegation. It arms its [`crate::SleepFlag`] and then releases every word; an
//! owner delegates and then checks whether the poller sleeps. At least one of the two sees the other.

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const UNDELEGATED: u32 = 0;
const DELEGATED: u32 = 1;
const SIGNALLED: u32 = 2;
const RELEASED: u32 = 3;

/// The delegation word of one owner and one poller; see the module.
#[derive(Debug)]
pub struct DelegationWord(AtomicU32);

/// How a delegation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegationEnd {
    /// The owner took it back.
    TakenBack,
    /// The poller found work for the owner.
    Signalled,
    /// The poller stopped polling.
    Released,
}

impl Default for DelegationWord {
    fn default() -> Self {
        Self::new()
    }
}

impl DelegationWord {
    /// Creates the word of an owner that is awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(UNDELEGATED))
    }

    /// Owner: delegates its polling. The poller reads the state that the owner published before this call.
    pub fn delegate(&self) {
        self.0.store(DELEGATED, Release);
    }

    /// Owner, awake again: ends the delegation, so that it is not woken any more. A poller that ended the delegation
    /// earlier may still be about to wake it.
    pub fn take_back(&self) -> DelegationEnd {
        match self.0.swap(UNDELEGATED, AcqRel) {
            SIGNALLED => DelegationEnd::Signalled,
            RELEASED => DelegationEnd::Released,
            _ => DelegationEnd::TakenBack,
        }
    }

    /// Poller: returns whether it polls on behalf of the owner.
    #[inline]
    pub fn is_delegated(&self) -> bool {
        self.0.load(Acquire) == DELEGATED
    }

    /// Poller, with work for the owner: ends the delegation. Returns whether it must wake the owner now.
    pub fn signal(&self) -> bool {
        self.0.compare_exchange(DELEGATED, SIGNALLED, AcqRel, Relaxed).is_ok()
    }

    /// Poller, about to sleep: ends the delegation. Returns whether it must wake the owner now.
    pub fn release(&self) -> bool {
        self.0.compare_exchange(DELEGATED, RELEASED, AcqRel, Relaxed).is_ok()
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! These models were checked to fail without either fence of `SleepFlag`, and if the poller does not release the
    //! word after it armed its own.

    use super::*;
    use crate::SleepFlag;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64};

    #[derive(Default)]
    struct Scene {
        word: DelegationWord,
        poller: SleepFlag,
        /// Value that a peer writes, and the last value that the owner has read.
        written: AtomicU64,
        seen: AtomicU64,
        woken: AtomicBool,
    }

    impl Scene {
        /// Polls on behalf of the owner.
        fn poll(&self) {
            let is_new = || self.written.load(Acquire) != self.seen.load(Relaxed);
            if self.word.is_delegated() && is_new() && self.word.signal() {
                self.woken.store(true, Release);
            }
        }

        fn poller_sleeps(&self) {
            self.poller.arm();
            if self.word.release() {
                self.woken.store(true, Release);
            }
        }

        /// Returns whether the owner sleeps and relies on the poller.
        fn owner_arms(&self) -> bool {
            let seen = self.written.load(Acquire);
            self.seen.store(seen, Relaxed);
            self.word.delegate();
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
            let relies = scene.owner_arms();
            peer.join().unwrap();
            poller.join().unwrap();
            if !sleeps {
                // The poller continues to poll.
                scene.poll();
            }
            let has_news = scene.written.load(Acquire) != scene.seen.load(Relaxed);
            assert!(!relies || !has_news || scene.woken.load(Acquire), "slept through");
            assert!(!relies || !sleeps || scene.woken.load(Acquire), "left behind");
        });
    }

    #[test]
    fn signals_a_delegating_owner_when_work_arrives() {
        check(false);
    }

    #[test]
    fn releases_all_owners_before_the_poller_sleeps() {
        check(true);
    }

    #[test]
    fn ends_a_delegation_once_without_a_spurious_wake_up() {
        loom::model(|| {
            let scene = Arc::new(Scene::default());
            scene.word.delegate();
            let poller = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || (scene.word.signal(), scene.word.release()))
            };
            let end = scene.word.take_back();
            let (signalled, released) = poller.join().unwrap();
            assert!(!(signalled && released));
            let expected = if signalled { DelegationEnd::Signalled } else { DelegationEnd::TakenBack };
            // `release` succeeds only if `signal` failed before the delegation, which is impossible here.
            assert_eq!((end, released), (expected, false));
        });
    }
}
