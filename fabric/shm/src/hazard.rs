//! Fenced revocation: how an owner takes back memory that initiators access by themselves.
//!
//! An initiator publishes a hazard before it re-checks that the access is (still) granted, copies, and clears the
//! hazard. The owner revokes (closes the pair, or bumps the region's generation), issues a process-wide barrier, and
//! waits until no hazard covers what it took back. Only the frequent side is cheap.

use crate::SharedMem;
use crate::fence;
use crate::ring::HAZARD;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A hazard value of an access that is to a pair's own receives.
pub const RECEIVES: u64 = u64::MAX;

/// The hazard value of an access to a region.
pub const fn of_region(rkey: u32) -> u64 {
    rkey as u64 + 1
}

/// Initiator: as [`enter`], through a word that was looked up before.
#[inline]
pub fn enter_word(word: &crate::SharedWord, value: u64) {
    word.store(value, Relaxed);
    fence::light();
}

/// Initiator: begins an access. What it was granted must be checked *after* this.
#[inline]
pub fn enter(mem: &SharedMem, value: u64) {
    mem.store(HAZARD, value, Relaxed);
    fence::light();
}

/// Initiator: ends the access.
#[inline]
pub fn leave(mem: &SharedMem) {
    mem.store(HAZARD, 0, Release);
}

/// Owner, after revoking and [`fence::heavy`]: the access under way, or 0.
pub fn current(mem: &SharedMem) -> u64 {
    mem.load(HAZARD, Acquire)
}

#[cfg(all(test, loom))]
mod tests {
    //! That the models can fail was tried by hand: without the fence of `enter`, or with `leave` relaxed, they do.

    use super::*;
    use crate::ring::ACCEPT;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Scene {
        mem: SharedMem,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: what the model proves: initiator and owner exclude each other. loom checks every access.
    unsafe impl Sync for Scene {}

    /// The owner reuses the memory only when the fence says so; loom finds two accesses at once.
    #[test]
    fn after_revocation_nothing_touches_the_memory() {
        loom::model(|| {
            let scene = Arc::new(Scene { mem: SharedMem::model(512), memory: UnsafeCell::new(0) });
            scene.mem.store(ACCEPT, 1, Release);
            let initiator = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    enter(&scene.mem, of_region(7));
                    if scene.mem.load(ACCEPT, Acquire) != 0 {
                        // SAFETY: granted, inside the hazard.
                        scene.memory.with_mut(|p| unsafe { *p = 1 });
                    }
                    leave(&scene.mem);
                })
            };
            scene.mem.store(ACCEPT, 0, Release);
            fence::heavy();
            if current(&scene.mem) == 0 {
                // SAFETY: revoked, and no access is under way.
                scene.memory.with_mut(|p| unsafe { *p = 2 });
            }
            initiator.join().unwrap();
        });
    }

    /// An initiator that stops inside its access is seen as long as it is there.
    #[test]
    fn a_stopped_access_stays_visible() {
        loom::model(|| {
            let scene = Arc::new(Scene { mem: SharedMem::model(512), memory: UnsafeCell::new(0) });
            scene.mem.store(ACCEPT, 1, Release);
            let initiator = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    enter(&scene.mem, of_region(7));
                    scene.mem.load(ACCEPT, Acquire) != 0
                })
            };
            scene.mem.store(ACCEPT, 0, Release);
            fence::heavy();
            let clear = current(&scene.mem) == 0;
            let was_admitted = initiator.join().unwrap();
            assert!(!(clear && was_admitted), "taken back under a running access");
        });
    }
}
