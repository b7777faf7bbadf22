//! Fenced revocation of memory that initiators access without the owner's help.
//!
//! An initiator publishes a hazard, re-checks that the access is still granted, copies, and clears the hazard. The
//! owner revokes the grant (closes the queue pair, or increments the region's generation), issues a process-wide
//! barrier, and waits until no hazard covers the revoked memory. Only the initiator's side is cheap.

use crate::SharedMem;
use crate::fence;
use crate::ring::HAZARD;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Hazard value of an access to the queue pair's own receives.
pub const RECEIVES: u64 = u64::MAX;

/// Returns the hazard value of an access to a region.
pub const fn of_region(rkey: u32) -> u64 {
    rkey as u64 + 1
}

/// Initiator: like [`enter`], with a control word that was looked up before.
#[inline]
pub fn enter_word(word: &crate::SharedWord, value: u64) {
    word.store(value, Relaxed);
    fence::light();
}

/// Initiator: begins an access. It must check the grant *after* this call.
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

/// Owner, after the revocation and [`fence::heavy`]: returns the access in progress, or 0.
pub fn current(mem: &SharedMem) -> u64 {
    mem.load(HAZARD, Acquire)
}

#[cfg(all(test, loom))]
mod tests {
    //! The models were checked to fail without the fence of `enter`, and with a relaxed store in `leave`.

    use super::*;
    use crate::ring::ACCEPT;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    struct Scene {
        mem: SharedMem,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: initiator and owner exclude each other, as the model is to show; loom checks every access.
    unsafe impl Sync for Scene {}

    /// The owner reuses the memory only if no hazard is visible after the fence; loom detects concurrent accesses.
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
                        // SAFETY: the grant was valid after the hazard was published, so the owner does not access the
                        // memory.
                        scene.memory.with_mut(|p| unsafe { *p = 1 });
                    }
                    leave(&scene.mem);
                })
            };
            scene.mem.store(ACCEPT, 0, Release);
            fence::heavy();
            if current(&scene.mem) == 0 {
                // SAFETY: the grant is revoked and no hazard is visible, so the initiator does not access the memory.
                scene.memory.with_mut(|p| unsafe { *p = 2 });
            }
            initiator.join().unwrap();
        });
    }

    /// A stopped initiator remains visible while it is inside its access.
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
