//! Credit announcements for requests that wait for their target, at a low cost while the application thread polls.
//!
//! A thread that polls the completion queue reads the target's control words anyway and needs no notification. Only a
//! sleeping application thread must be notified. For this the initiator sets a word (`WANT`) in the target's segment,
//! and the target then announces the credit that it grants. Announcements cost both sides, so the word is set only by a
//! thread that leaves requests waiting and then finds the completion queue armed.
//!
//! An application thread arms the queue and polls once more (ibv_req_notify_cq(3)). Either this poll enters the send
//! side and calls [`after_release`] when it leaves, or another thread is inside and calls it later. For an application
//! thread that neither sleeps nor polls, the service thread does it.

use crate::SharedMem;
use crate::fence;
use crate::pending_lock::{PendingLock, PendingWork};
use crate::readiness::Readiness;
use crate::ring::WANT;
use crate::sync::atomic::Ordering::Relaxed;

/// Initiator: requests announcements of the target's credit. Returns whether the request is new; the caller must then
/// check the credit once more, because credit granted earlier is not announced.
pub fn request_credit(mem: &SharedMem) -> bool {
    if mem.load(WANT, Relaxed) != 0 {
        return false;
    }
    mem.store(WANT, 1, Relaxed);
    fence::heavy();
    true
}

/// Initiator: cancels the request when no work request waits any more.
pub fn cancel(mem: &SharedMem) {
    if mem.load(WANT, Relaxed) != 0 {
        mem.store(WANT, 0, Relaxed);
    }
}

/// Target, after granting credit: returns whether it must announce the credit.
#[inline]
pub fn is_credit_requested(mem: &SharedMem) -> bool {
    fence::light();
    mem.load(WANT, Relaxed) != 0
}

/// Must be called by each thread that has left `side`. If requests wait there, the application thread of the completion
/// queue checks `bit` at its next poll. If it sleeps, `request_and_check` requests announcements from the target and
/// uses the credit granted earlier.
#[inline]
pub fn after_release<T: PendingWork>(
    side: &PendingLock<T>,
    readiness: &Readiness,
    bit: u32,
    request_and_check: impl FnOnce(&mut T),
) {
    if !side.has_pending() || !readiness.keep(bit) {
        return;
    }
    // A thread that is inside now calls this function when it leaves.
    if let Some(mut inside) = side.helper() {
        request_and_check(&mut inside);
    }
}

#[cfg(all(test, loom))]
mod tests {
    //! These models were checked to fail without either fence of `request_credit` and `is_credit_requested`, without
    //! the check after `request_credit`, without the fence of `keep`, and if only the owner of the send side calls
    //! `after_release`.

    use super::*;
    use crate::readiness::LEN_BYTES;
    use crate::ring::RQ_POSTED;
    use crate::sync::atomic::Ordering::{Acquire, Release};
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    /// A request that waits for a receive.
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
        fn check_credit(&mut self) {
            if self.target.load(RQ_POSTED, Acquire) != 0 {
                self.waits = false;
            }
        }

        fn request_and_check(&mut self) {
            if self.waits && request_credit(&self.target) {
                self.check_credit();
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

        /// Owner of the queue pair: posts a request, which waits.
        fn post(&self) {
            // SAFETY: only one thread calls this function, and it holds no guard.
            let mut inside = unsafe { self.side.owner() };
            inside.waits = true;
            inside.check_credit();
            drop(inside);
            self.leave();
        }

        fn leave(&self) {
            after_release(&self.side, &self.queue, 0, Request::request_and_check);
        }

        /// Target: posts a receive.
        fn give(&self) {
            self.target.store(RQ_POSTED, 1, Release);
            if is_credit_requested(&self.target) {
                self.queue.announce(0, true, || self.event.store(true, Release));
            }
        }

        /// Owner of the completion queue: polls.
        fn poll(&self) {
            if self.queue.bits(0) & 1 != 0
                && let Some(mut inside) = self.side.helper()
            {
                inside.check_credit();
                drop(inside);
                self.leave();
            }
        }

        /// Checks, after all threads have ended, that the request has completed or the sleeper was woken.
        fn check(&self) {
            assert!(!self.side.has_pending() || self.event.load(Acquire), "it waits, and no event is set");
        }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// The owner posts, arms, polls once more and sleeps, while the target posts a receive.
    #[test]
    fn wakes_a_thread_that_posts_and_then_sleeps() {
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

    /// Another thread posts while the completion queue's owner arms and polls, and the target posts a receive.
    #[test]
    fn wakes_a_thread_that_sleeps_while_another_posts() {
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

    /// The service thread is inside when the owner polls for the last time.
    #[test]
    fn wakes_a_thread_that_sleeps_during_a_service_poll() {
        check(|| {
            let scene = Scene::new();
            scene.post();
            let service = {
                let scene = scene.clone();
                loom::thread::spawn(move || {
                    if let Some(mut inside) = scene.side.helper() {
                        inside.check_credit();
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

    /// A queue pair whose readiness bit is being cleared is polled again when its request begins to wait.
    #[test]
    fn polls_a_waiting_request_again() {
        check(|| {
            let scene = Scene::new();
            scene.queue.set_polled(0);
            let poster = {
                let scene = scene.clone();
                loom::thread::spawn(move || scene.post())
            };
            scene.queue.clear_idle(&mut [0], &mut [0], |_| scene.side.has_pending());
            poster.join().unwrap();
            assert!(scene.queue.bits(0) & 1 != 0, "it waits, and no poll reads it");
        });
    }
}
