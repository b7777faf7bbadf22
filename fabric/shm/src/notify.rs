//! How a request that waits for its target is not forgotten, and costs little while its owner looks after it.
//!
//! Whoever polls the completion queue looks at the target's words anyway: nobody needs to be told. Only an owner that
//! sleeps must be, and for that the initiator sets a word in the target's segment, which makes the target announce what
//! it gives. The word costs both sides: so it is set by whoever leaves requests waiting and then finds the completion
//! queue armed. An owner arms and looks once more (ibv_req_notify_cq(3)): either it comes in, and leaves with that
//! look, or somebody else was inside and leaves later. Who neither sleeps nor polls has the service thread.

use crate::SharedMem;
use crate::fence;
use crate::pending_lock::{PendingLock, PendingWork};
use crate::readiness::Readiness;
use crate::ring::WANT;
use crate::sync::atomic::Ordering::Relaxed;

/// Initiator: asks the target to announce what it gives. Returns whether that is new, so that the caller must look once
/// more: what was given before is not announced.
pub fn request(mem: &SharedMem) -> bool {
    if mem.load(WANT, Relaxed) != 0 {
        return false;
    }
    mem.store(WANT, 1, Relaxed);
    fence::heavy();
    true
}

/// Initiator: nothing waits any more.
pub fn cancel(mem: &SharedMem) {
    if mem.load(WANT, Relaxed) != 0 {
        mem.store(WANT, 0, Relaxed);
    }
}

/// Target, after it gave something: whether that is to be announced.
#[inline]
pub fn is_requested(mem: &SharedMem) -> bool {
    fence::light();
    mem.load(WANT, Relaxed) != 0
}

/// To be called by whoever has left `side`: if work waits there, the owner of the completion queue looks at `bit` with
/// its next poll; if it sleeps, `ask_and_look` asks the target and goes on with what it had given before.
#[inline]
pub fn after_leaving<T: PendingWork>(
    side: &PendingLock<T>,
    readiness: &Readiness,
    bit: u32,
    ask_and_look: impl FnOnce(&mut T),
) {
    if !side.has_pending() || !readiness.keep(bit) {
        return;
    }
    // Whoever is inside now comes by here when he leaves.
    if let Some(mut inside) = side.helper() {
        ask_and_look(&mut inside);
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! That these models can fail was tried by hand: they do without either fence of `request` and `is_requested`,
    //! without the look after `request`, without the fence of `keep`, and if only the owner of the send side comes by
    //! `after_leaving`.

    use super::*;
    use crate::readiness::LEN_BYTES;
    use crate::ring::RQ_POSTED;
    use crate::sync::atomic::Ordering::{Acquire, Release};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    /// One request that waits for a receive.
    struct Request {
        waits: bool,
        target: SharedMem,
    }

    impl PendingWork for Request {
        fn has_pending(&self) -> bool {
            self.waits
        }
    }

    impl Request {
        fn look(&mut self) {
            if self.target.load(RQ_POSTED, Acquire) != 0 {
                self.waits = false;
            }
        }

        fn ask_and_look(&mut self) {
            if self.waits && request(&self.target) {
                self.look();
            }
        }
    }

    struct Scene {
        side: PendingLock<Request>,
        target: SharedMem,
        queue: Readiness,
        event: AtomicBool,
    }

    impl Scene {
        fn new() -> Arc<Self> {
            let target = SharedMem::model(512);
            Arc::new(Self {
                side: PendingLock::new(Request { waits: false, target: target.clone() }),
                target,
                queue: Readiness::create(SharedMem::model(LEN_BYTES)),
                event: AtomicBool::new(false),
            })
        }

        /// The owner of the queue pair posts a request, which waits.
        fn post(&self) {
            // SAFETY: called by one thread, which has no guard.
            let mut inside = unsafe { self.side.owner() };
            inside.waits = true;
            inside.look();
            drop(inside);
            self.leave();
        }

        fn leave(&self) {
            after_leaving(&self.side, &self.queue, 0, Request::ask_and_look);
        }

        /// The target gives a receive.
        fn give(&self) {
            self.target.store(RQ_POSTED, 1, Release);
            if is_requested(&self.target) {
                self.queue.announce(0, true, || self.event.store(true, Release));
            }
        }

        /// The owner of the completion queue looks.
        fn poll(&self) {
            if self.queue.bits(0) & 1 != 0
                && let Some(mut inside) = self.side.helper()
            {
                inside.look();
                drop(inside);
                self.leave();
            }
        }

        /// After everything has come to rest: the request is done, or the sleeper was woken.
        fn check(&self) {
            assert!(!self.side.has_pending() || self.event.load(Acquire), "it waits, and nobody is told");
        }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// The owner posts, arms, looks once more and sleeps, while the target gives.
    #[test]
    fn who_sleeps_after_posting_is_woken() {
        check(|| {
            let scene = Scene::new();
            let target = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.give())
            };
            scene.post();
            scene.queue.arm(false);
            scene.poll();
            target.join().unwrap();
            scene.check();
        });
    }

    /// Another thread posts, while the completion queue's owner arms and looks; the target gives meanwhile.
    #[test]
    fn who_sleeps_while_another_posts_is_woken() {
        check(|| {
            let scene = Scene::new();
            let poster = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.post())
            };
            let target = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.give())
            };
            scene.queue.arm(false);
            scene.poll();
            poster.join().unwrap();
            target.join().unwrap();
            scene.check();
        });
    }

    /// The service thread is inside when the owner looks for the last time.
    #[test]
    fn who_sleeps_while_the_service_thread_looks_is_woken() {
        check(|| {
            let scene = Scene::new();
            scene.post();
            let service = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    if let Some(mut inside) = scene.side.helper() {
                        inside.look();
                        drop(inside);
                        scene.leave();
                    }
                })
            };
            let target = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.give())
            };
            scene.queue.arm(false);
            scene.poll();
            service.join().unwrap();
            target.join().unwrap();
            scene.check();
        });
    }

    /// A quiet pair is no longer looked at when its request begins to wait.
    #[test]
    fn what_waits_is_looked_at_again() {
        check(|| {
            let scene = Scene::new();
            scene.queue.promise(0);
            let poster = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.post())
            };
            scene.queue.withdraw_quiet(&mut [0], &mut [0], |_| scene.side.has_pending());
            poster.join().unwrap();
            assert!(scene.queue.bits(0) & 1 != 0, "it waits, and no poll looks");
        });
    }
}
