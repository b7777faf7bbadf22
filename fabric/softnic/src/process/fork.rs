//! Fork while connected. A forked child must not disturb its parent or the parent's peers, and the descriptors that it
//! inherits must not hide the parent's exit.
//!
//! In the child every shared mapping becomes a private copy, and every descriptor that other processes listen to or
//! watch is replaced by an unused one. The inherited objects refuse every call; dropping them does nothing. The child
//! may open the device again. All of this happens in the handlers of `fork(3)`. A process that execs immediately, as
//! `posix_spawn` does, needs none of it, because all descriptors are closed on exec.

use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, Once};

use farcall_shm::Mutex;
use farcall_shm::fork::{self as registry, LockedRegistry};

use super::{interned, shared_remap};

/// The only instance of this process; its type is that of the transport's state.
pub(crate) static INSTANCE: Mutex<Option<Arc<dyn Any + Send + Sync>>> = Mutex::new(None);

/// Locks that the forking thread holds during the fork, so that the child finds consistent lists.
struct Locks {
    slot: MutexGuard<'static, Option<Arc<dyn Any + Send + Sync>>>,
    interned: interned::ForkGuard,
    registry: LockedRegistry,
    stats: farcall_stats::LockedPage,
    moved: shared_remap::ForkGuard,
    helpers: shared_remap::Paused,
}

thread_local! {
    static HELD: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// Installs the fork handlers.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers have the required type, and functions exist as long as the program.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child));
    });
}

extern "C" fn prepare() {
    let _ = HELD.try_with(|held| {
        let slot = INSTANCE.lock();
        // The lock of the table of moved memory comes after that of the instance: a thread that holds it may access the
        // instance.
        let moved = shared_remap::hold_for_fork();
        // The lock order is that of a thread that moves memory: the table, then the helpers.
        let helpers = shared_remap::pause();
        // The lock order is that of a thread that maps a peer's memory: this list, then the registry.
        let interned = interned::hold_for_fork();
        let (registry, stats) = (registry::lock(), farcall_stats::lock_for_fork());
        held.replace(Some(Locks { slot, moved, interned, registry, stats, helpers }))
    });
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn in_child() {
    registry::enter_child();
    let Ok(Some(Locks { mut slot, interned, registry, stats, moved, helpers })) =
        HELD.try_with(RefCell::take)
    else {
        return;
    };
    drop(stats);
    helpers.detach();
    interned.detach();
    // Never dropped: dropping it would need threads of the parent.
    std::mem::forget(slot.take());
    registry.detach();
    // The mappings that remain belong to the program.
    moved.detach();
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::process::KernelObjectId;

    /// Registers an object under an identity that no other object has: there is no device with this number.
    fn hold(inode: u64, object: u64) -> Arc<u64> {
        let identity = KernelObjectId::Memory { device: u64::MAX, inode, offset_bytes: 1 };
        let Ok(object) = interned::intern(identity, || Ok::<_, Infallible>(Arc::new(object)));
        object
    }

    #[test]
    fn holds_objects_in_a_child_despite_threads_of_its_parent() {
        const FORKS: u64 = 100;
        install();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    hold(0, 0);
                }
            });
            let mine = hold(1, 1);
            let works = (0..FORKS).all(|_| works_in_child(|| *hold(1, 2) == 2));
            ends.store(true, Ordering::Relaxed);
            assert!(works && *hold(1, 3) == *mine);
        });
    }

    /// Returns whether `work` returns `true` in a forked child within 20 seconds.
    fn works_in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child exits without running destructors of the parent. It is killed if it waits for a thread that
        // it does not have.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::alarm(20);
                libc::_exit(i32::from(!work()));
            }
            let mut status = -1;
            pid > 0 && libc::waitpid(pid, &mut status, 0) == pid && status == 0
        }
    }
}
