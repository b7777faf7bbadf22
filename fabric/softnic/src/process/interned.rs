//! Objects that arrive with each queue pair of a peer but are the same for many: its event descriptors, and the memory
//! of its completion queues. Each is held once, by the identity that the kernel reports.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, Weak};

use farcall_shm::Mutex;

/// Identity of the kernel object that a descriptor refers to. It is unique while a descriptor of the object exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelObjectId {
    /// `eventfd-id` in the descriptor's fdinfo.
    Event(u64),
    /// Device and inode of a memfd, and the offset of the memory in it.
    Memory { device: u64, inode: u64, offset_bytes: u32 },
}

type Objects = BTreeMap<KernelObjectId, Weak<dyn Any + Send + Sync>>;

static OBJECTS: Mutex<Objects> = Mutex::new(BTreeMap::new());

/// Returns the existing object with this identity, or the one that `create` creates.
///
/// # Errors
/// Returns the errors of `create`.
pub(crate) fn intern<T: Any + Send + Sync, E>(
    identity: KernelObjectId,
    create: impl FnOnce() -> Result<Arc<T>, E>,
) -> Result<Arc<T>, E> {
    let mut objects = OBJECTS.lock();
    let same = objects.get(&identity).and_then(Weak::upgrade);
    if let Some(same) = same.and_then(|object| object.downcast().ok()) {
        return Ok(same);
    }
    let object = create()?;
    // Pruned at intervals, so that the map holds few entries of objects that no longer exist.
    if objects.len().is_power_of_two() {
        objects.retain(|_, object| object.strong_count() > 0);
    }
    objects.insert(identity, Arc::downgrade(&object) as _);
    Ok(object)
}

/// Lock of the list during a fork, so that the child can use it.
pub(super) struct ForkGuard(MutexGuard<'static, Objects>);

pub(super) fn hold_for_fork() -> ForkGuard {
    ForkGuard(OBJECTS.lock())
}

impl ForkGuard {
    /// In the child: forgets all objects, which belong to the parent.
    pub(super) fn detach(mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Barrier;

    use super::*;

    /// Returns an identity that no other test uses: there is no device with this number.
    fn identity(inode: u64) -> KernelObjectId {
        KernelObjectId::Memory { device: u64::MAX, inode, offset_bytes: 0 }
    }

    fn hold<T: Any + Send + Sync>(identity: KernelObjectId, object: T) -> Arc<T> {
        let Ok(object) = intern(identity, || Ok::<_, Infallible>(Arc::new(object)));
        object
    }

    #[test]
    fn threads_that_ask_at_once_hold_one_object() {
        const THREADS: usize = 4;
        for round in 0..200 {
            let barrier = Barrier::new(THREADS);
            let ask = || {
                barrier.wait();
                hold(identity(round), round)
            };
            let objects = std::thread::scope(|scope| {
                let threads = [(); THREADS].map(|()| scope.spawn(ask));
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(objects.iter().all(|object| Arc::ptr_eq(object, &objects[0])), "round {round}");
        }
    }

    #[test]
    fn recreates_an_unheld_object_and_reports_creation_errors() {
        let place = identity(1_000);
        assert_eq!(intern::<u8, _>(place, || Err("no memory")), Err("no memory"));
        let first = hold(place, 1);
        assert_eq!(*hold(place, 2), 1);
        drop(first);
        assert_eq!(*hold(place, 3), 3);
    }
}
