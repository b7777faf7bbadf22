//! Objects that a forked child must not share with its parent: shared mappings, descriptors, queues.
//!
//! Each creator of such an object registers it here. The component that installs handlers of `fork(3)` locks the
//! registry before a fork ([`lock`]) and calls [`enter_child`] and [`LockedRegistry::detach`] in the child. There every
//! shared mapping becomes a private copy, every registered descriptor becomes one that is never ready, and every queue
//! refuses work from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{MutexGuard, Once, Weak};

use farcall_verbs::{Error, Result};

use crate::Mutex;

/// Number of forks between the first process of this program and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

static OBJECTS: Mutex<Objects> =
    Mutex::new(Objects { mappings: BTreeMap::new(), fds: BTreeSet::new(), queues: Vec::new() });

/// A queue of any kind that must refuse work in a forked child.
pub trait DisableInChild: Send + Sync {
    /// Called in the child while it has only one thread. Afterwards nothing can be posted or polled.
    fn disable_in_child(&self);
}

/// Registered objects that a fork must handle.
struct Objects {
    /// By base address.
    mappings: BTreeMap<usize, SharedMapping>,
    fds: BTreeSet<RawFd>,
    queues: Vec<Weak<dyn DisableInChild>>,
}

struct SharedMapping {
    len_bytes: usize,
    writable: bool,
    /// The memfd, while this process has it open.
    source: Option<RawFd>,
}

/// Number of forks between the first process of this program and the process that created an object.
#[derive(Clone, Copy)]
pub struct Generation(u32);

impl Generation {
    /// Returns the generation of this process. Forks are counted from the first call on.
    pub fn current() -> Self {
        static COUNTING: Once = Once::new();
        // SAFETY: `count_fork` has the required type and is never unloaded while the program runs.
        COUNTING.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(count_fork));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process inherited the object by a fork.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// Checks that this process created the object.
    ///
    /// # Errors
    /// Returns [`Error::InvalidState`] if this process inherited the object by a fork.
    #[inline]
    pub fn require_current(self, operation: &'static str, object: impl Display) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        Err(inherited(operation, object.to_string()))
    }
}

#[cold]
fn inherited(operation: &'static str, object: String) -> Error {
    Error::InvalidState {
        operation,
        object,
        state: "inherited by a fork".into(),
        remedy: "it works in the process that made it; a forked child must open the device itself",
    }
}

/// A descriptor that is replaced in a forked child.
pub struct DontForkFd(OwnedFd);

impl DontForkFd {
    /// Registers `fd` for the lifetime of the returned object.
    pub fn new(fd: OwnedFd) -> Self {
        OBJECTS.lock().fds.insert(fd.as_raw_fd());
        Self(fd)
    }
}

impl AsFd for DontForkFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for DontForkFd {
    fn drop(&mut self) {
        OBJECTS.lock().fds.remove(&self.0.as_raw_fd());
    }
}

/// Registers a shared mapping.
pub fn add_mapping(base: *mut u8, len_bytes: usize, writable: bool) {
    OBJECTS.lock().mappings.insert(base.addr(), SharedMapping { len_bytes, writable, source: None });
}

/// Sets the descriptor of a mapping's memory while it is open; a forked child copies the memory from it.
pub fn set_source(base: *mut u8, source: Option<RawFd>) {
    if let Some(mapping) = OBJECTS.lock().mappings.get_mut(&base.addr()) {
        mapping.source = source;
    }
}

/// Removes a mapping from the registry. Call it before the mapping is unmapped.
pub fn remove_mapping(base: *mut u8) {
    OBJECTS.lock().mappings.remove(&base.addr());
}

/// Returns whether `addr` lies in a registered mapping.
pub fn is_ours(addr: u64) -> bool {
    let objects = OBJECTS.lock();
    let before = objects.mappings.range(..=addr as usize).next_back();
    before.is_some_and(|(base, mapping)| addr as usize - base < mapping.len_bytes)
}

/// Registers a queue for its lifetime.
pub fn add_queue(queue: Weak<dyn DisableInChild>) {
    let queues = &mut OBJECTS.lock().queues;
    // Amortised cleanup: the list never exceeds twice the number of existing queues.
    if queues.len() == queues.capacity() {
        queues.retain(|queue| queue.strong_count() > 0);
    }
    queues.push(queue);
}

/// The registry, locked while a thread forks, so that the child finds consistent lists.
pub struct LockedRegistry(MutexGuard<'static, Objects>);

/// Locks the registry. Called before a fork by the forking thread; the parent drops the result.
pub fn lock() -> LockedRegistry {
    LockedRegistry(OBJECTS.lock())
}

/// Marks all existing objects as inherited. Must be called first in a child. A fork may be counted twice.
pub fn enter_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn count_fork() {
    enter_child();
}

impl LockedRegistry {
    /// Called in the child: detaches all registered objects from those of the parent.
    pub fn detach(mut self) {
        let objects = &mut *self.0;
        abandon(&objects.fds);
        for (base, mapping) in &objects.mappings {
            make_private(*base, mapping);
        }
        // The remaining mappings and descriptors belong to the child alone.
        objects.mappings.clear();
        objects.fds.clear();
        for queue in objects.queues.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.disable_in_child();
            // Not dropped: the destructor would act on resources of the parent.
            std::mem::forget(queue);
        }
    }
}

/// Replaces the parent's descriptors by copies of a private one that is never ready.
fn abandon(fds: &BTreeSet<RawFd>) {
    let Some(first) = fds.first().copied() else { return };
    // SAFETY: the numbers belong to descriptors that registered objects hold, and `dup3` keeps each number open. The
    // child has only one thread, so no other code uses the number `first` between close and dup3.
    unsafe {
        // Close one first, so that a number is free for the new descriptor.
        libc::close(first);
        let nobody = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if nobody < 0 {
            return;
        }
        for fd in fds {
            libc::dup3(nobody, *fd, libc::O_CLOEXEC);
        }
        if nobody != first {
            libc::close(nobody);
        }
    }
}

/// Replaces a shared mapping by a private copy: reads return the old contents, and writes are visible to the child
/// only.
fn make_private(base: usize, mapping: &SharedMapping) {
    let base = std::ptr::with_exposed_provenance_mut(base);
    let prot = if mapping.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: replaces a registered mapping by one at the same address and of the same size. Registered mappings are
    // accessed by checked addresses and as atomics only, which remain valid in the new mapping.
    unsafe {
        if let Some(fd) = mapping.source
            && libc::mmap(base, mapping.len_bytes, prot, fixed, fd, 0) != libc::MAP_FAILED
        {
            return;
        }
        // The memory of a peer, whose descriptor is not retained: replace it by zeros, which read as a closed and empty
        // queue.
        if libc::mmap(base, mapping.len_bytes, prot, fixed | libc::MAP_ANONYMOUS, -1, 0) == libc::MAP_FAILED {
            libc::munmap(base, mapping.len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_objects_of_this_process() {
        assert!(
            !Generation::current().is_inherited() && Generation::current().require_current("x", "y").is_ok()
        );
        let inherited = Generation(FORKS.load(Ordering::Relaxed).wrapping_sub(1));
        let error = inherited.require_current("post_send", "queue pair 7").unwrap_err().to_string();
        assert!(error.contains("queue pair 7") && error.contains("fork"), "{error}");
    }
}
