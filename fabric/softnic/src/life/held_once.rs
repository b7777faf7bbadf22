//! What comes with each queue pair of a peer anew and is the same for many: its event descriptors, the memory of its
//! completion queues. Each is held once, by what the kernel says that it is.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, Weak};

use farcall_shm::Mutex;

/// What the kernel says that a descriptor refers to, as long as anybody has one of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Identity {
    /// `eventfd-id` of its fdinfo.
    Event(u64),
    /// Device and inode of a memfd, and where in it the memory begins.
    Memory { device: u64, inode: u64, offset_bytes: u32 },
}

type Objects = BTreeMap<Identity, Weak<dyn Any + Send + Sync>>;

static HELD: Mutex<Objects> = Mutex::new(BTreeMap::new());

/// The object of this identity that somebody holds, or the one that `make` makes.
///
/// # Errors
/// Those of `make`.
pub(crate) fn held_once<T: Any + Send + Sync, E>(
    identity: Identity,
    make: impl FnOnce() -> Result<Arc<T>, E>,
) -> Result<Arc<T>, E> {
    let mut held = HELD.lock();
    let same = held.get(&identity).and_then(Weak::upgrade);
    if let Some(same) = same.and_then(|object| object.downcast().ok()) {
        return Ok(same);
    }
    let object = make()?;
    // Now and then, so that there are not many more than live.
    if held.len().is_power_of_two() {
        held.retain(|_, object| object.strong_count() > 0);
    }
    held.insert(identity, Arc::downgrade(&object) as _);
    Ok(object)
}

/// While a thread forks nobody else has the list, so that the child can use it.
pub(super) struct ForkGuard(MutexGuard<'static, Objects>);

pub(super) fn hold_for_fork() -> ForkGuard {
    ForkGuard(HELD.lock())
}

impl ForkGuard {
    /// In the child: all of that is its parent's.
    pub(super) fn detach(mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Barrier;

    use super::*;

    /// An identity that no other test has: there is no device of this number.
    fn identity(inode: u64) -> Identity {
        Identity::Memory { device: u64::MAX, inode, offset_bytes: 0 }
    }

    fn hold<T: Any + Send + Sync>(identity: Identity, object: T) -> Arc<T> {
        let Ok(object) = held_once(identity, || Ok::<_, Infallible>(Arc::new(object)));
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
    fn what_nobody_holds_is_made_anew_and_what_cannot_be_made_is_not_held() {
        let place = identity(1_000);
        assert_eq!(held_once::<u8, _>(place, || Err("no memory")), Err("no memory"));
        let first = hold(place, 1);
        assert_eq!(*hold(place, 2), 1);
        drop(first);
        assert_eq!(*hold(place, 3), 3);
    }
}
