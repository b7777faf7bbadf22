//! What a forked child must not share with its parent: shared mappings, descriptors, queues.
//!
//! Whoever makes such a thing registers it here. Whoever installs handlers of `fork(3)` locks the registry before a
//! fork ([`lock`]) and calls [`enter_child`] and [`LockedRegistry::detach`] in the child: there every shared mapping
//! becomes a private copy, every registered descriptor becomes one that is never ready, and every queue is told to
//! refuse work.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{MutexGuard, Once, Weak};

use farcall_verbs::{Error, Result};

use crate::Mutex;

/// Forks between the first process of this program and us.
static FORKS: AtomicU32 = AtomicU32::new(0);

static OBJECTS: Mutex<Objects> =
    Mutex::new(Objects { mappings: BTreeMap::new(), fds: BTreeSet::new(), queues: Vec::new() });

/// A queue, of whatever kind, that must refuse work in a forked child.
pub trait DisableInChild: Send + Sync {
    /// Called in the child, while nobody else runs: from now on nothing can be posted or polled.
    fn disable_in_child(&self);
}

/// What a fork must deal with.
struct Objects {
    /// By address.
    mappings: BTreeMap<usize, SharedMapping>,
    fds: BTreeSet<RawFd>,
    queues: Vec<Weak<dyn DisableInChild>>,
}

struct SharedMapping {
    len_bytes: usize,
    writable: bool,
    /// The memfd, as long as it is ours and open.
    source: Option<RawFd>,
}

/// How many forks lie between the first process of this program and the one that made an object.
#[derive(Clone, Copy)]
pub struct Generation(u32);

impl Generation {
    /// Ours. Forks are counted from the first call on.
    pub fn current() -> Self {
        static COUNTING: Once = Once::new();
        // SAFETY: a handler of the right type, which lives as long as the program.
        COUNTING.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(count_fork));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the object came to us by a fork.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// If the object came to us by a fork.
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
        remedy: "it works in the process that made it; a forked child opens the device anew",
    }
}

/// A descriptor that must not stay open in a forked child.
pub struct DontForkFd(OwnedFd);

impl DontForkFd {
    /// Registers `fd` as long as this lives.
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

/// Sets the descriptor of a mapping's memory, while it is open: a child copies from it.
pub fn set_source(base: *mut u8, source: Option<RawFd>) {
    if let Some(mapping) = OBJECTS.lock().mappings.get_mut(&base.addr()) {
        mapping.source = source;
    }
}

/// Takes a mapping out of the registry, before it is unmapped.
pub fn remove_mapping(base: *mut u8) {
    OBJECTS.lock().mappings.remove(&base.addr());
}

/// Whether `addr` lies in a registered mapping.
pub fn is_ours(addr: u64) -> bool {
    let objects = OBJECTS.lock();
    let before = objects.mappings.range(..=addr as usize).next_back();
    before.is_some_and(|(base, mapping)| addr as usize - base < mapping.len_bytes)
}

/// Registers a queue, as long as it lives.
pub fn add_queue(queue: Weak<dyn DisableInChild>) {
    let queues = &mut OBJECTS.lock().queues;
    // Now and then, so that the list is not longer than twice what lives.
    if queues.len() == queues.capacity() {
        queues.retain(|queue| queue.strong_count() > 0);
    }
    queues.push(queue);
}

/// The registry, locked while a thread forks, so that the child finds whole lists.
pub struct LockedRegistry(MutexGuard<'static, Objects>);

/// To be called before a fork, by the thread that forks; dropped in the parent.
pub fn lock() -> LockedRegistry {
    LockedRegistry(OBJECTS.lock())
}

/// To be called first in a child: what was made before is inherited from now on. A fork may be counted twice.
pub fn enter_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn count_fork() {
    enter_child();
}

impl LockedRegistry {
    /// In the child: takes everything registered out of its reach.
    pub fn detach(mut self) {
        let objects = &mut *self.0;
        abandon(&objects.fds);
        for (base, mapping) in &objects.mappings {
            make_private(*base, mapping);
        }
        // All this is the child's own now.
        objects.mappings.clear();
        objects.fds.clear();
        for queue in objects.queues.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.disable_in_child();
            // Never dropped: its destructor would act on what is the parent's.
            std::mem::forget(queue);
        }
    }
}

/// Puts descriptors that are never ready, and known to nobody else, in the place of the parent's.
fn abandon(fds: &BTreeSet<RawFd>) {
    let Some(first) = fds.first().copied() else { return };
    // SAFETY: numbers of descriptors that objects of ours hold: they stay open, as something else.
    unsafe {
        // First, so that there is a number for the new one.
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

/// What the child reads there is what was there; what it writes there, only it sees.
fn make_private(base: usize, mapping: &SharedMapping) {
    let base = std::ptr::with_exposed_provenance_mut(base);
    let prot = if mapping.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: replaces a mapping of our own by one of the same place and size; it is accessed by checked addresses
    // only.
    unsafe {
        if let Some(fd) = mapping.source
            && libc::mmap(base, mapping.len_bytes, prot, fixed, fd, 0) != libc::MAP_FAILED
        {
            return;
        }
        // A peer's memory, of which no descriptor is kept: closed, empty and silent.
        if libc::mmap(base, mapping.len_bytes, prot, fixed | libc::MAP_ANONYMOUS, -1, 0) == libc::MAP_FAILED {
            libc::munmap(base, mapping.len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_here_works_here() {
        assert!(
            !Generation::current().is_inherited() && Generation::current().require_current("x", "y").is_ok()
        );
        let inherited = Generation(FORKS.load(Ordering::Relaxed).wrapping_sub(1));
        let error = inherited.require_current("post_send", "queue pair 7").unwrap_err().to_string();
        assert!(error.contains("queue pair 7") && error.contains("fork"), "{error}");
    }
}
