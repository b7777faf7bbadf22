//! Fork while connected. Nothing that a forked child does may disturb its parent or the parent's peers, and nothing that
//! it holds may hide the parent's death.
//!
//! In the child every shared mapping becomes a private copy, every descriptor that others listen to or watch becomes one
//! of nobody, and the objects that it inherited refuse to work; dropping them does nothing. The child may open the device
//! anew. All that happens in the handlers of `fork(3)`; what execs at once, as `posix_spawn` does, needs none of it,
//! because all descriptors are closed on exec.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use farcall_verbs::{Error, Result};

use crate::in_place;
use crate::process::{self, Process};

/// Forks between the first process of this program and us.
static FORKS: AtomicU32 = AtomicU32::new(0);

static OBJECTS: Mutex<Objects> =
    Mutex::new(Objects { mappings: BTreeMap::new(), fds: BTreeSet::new(), queues: Vec::new() });

/// A queue, of whatever kind, that must tell a forked child that it does not work there.
pub(crate) trait Orphan: Send + Sync {
    /// Called in the child, while nobody else runs: from now on nothing can be posted or polled.
    fn orphan(&self);
}

/// What a fork must deal with.
struct Objects {
    /// By address.
    mappings: BTreeMap<usize, Shared>,
    fds: BTreeSet<RawFd>,
    queues: Vec<Weak<dyn Orphan>>,
}

struct Shared {
    len_bytes: usize,
    writable: bool,
    /// The memfd, as long as it is ours and open.
    source: Option<RawFd>,
}

fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In which process an object was made.
#[derive(Clone, Copy)]
pub(crate) struct Born(u32);

impl Born {
    pub(crate) fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the object came to us by a fork.
    pub(crate) fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// If the object came to us by a fork.
    pub(crate) fn require_here(self, operation: &'static str, object: &str) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        Err(Error::InvalidState {
            operation,
            object: object.into(),
            state: "inherited by a fork".into(),
            remedy: "it works in the process that made it; a forked child opens the device anew",
        })
    }
}

/// A descriptor that must not stay open in a forked child.
pub(crate) struct UnforkedFd(OwnedFd);

impl UnforkedFd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        objects().fds.insert(fd.as_raw_fd());
        Self(fd)
    }
}

impl AsFd for UnforkedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for UnforkedFd {
    fn drop(&mut self) {
        objects().fds.remove(&self.0.as_raw_fd());
    }
}

/// Remembers a shared mapping.
pub(crate) fn add_mapping(base: *mut u8, len_bytes: usize, writable: bool) {
    objects().mappings.insert(base.addr(), Shared { len_bytes, writable, source: None });
}

/// The descriptor of a mapping's memory, while it is open.
pub(crate) fn set_source(base: *mut u8, source: Option<RawFd>) {
    if let Some(mapping) = objects().mappings.get_mut(&base.addr()) {
        mapping.source = source;
    }
}

pub(crate) fn remove_mapping(base: *mut u8) {
    objects().mappings.remove(&base.addr());
}

/// Whether a mapping is ours, and no memory of the program.
pub(crate) fn is_ours(addr: u64) -> bool {
    let objects = objects();
    let before = objects.mappings.range(..=addr as usize).next_back();
    before.is_some_and(|(base, mapping)| addr as usize - base < mapping.len_bytes)
}

/// Remembers a queue.
pub(crate) fn add_queue(queue: Weak<dyn Orphan>) {
    let queues = &mut objects().queues;
    // Now and then, so that the list is not longer than twice what lives.
    if queues.len() == queues.capacity() {
        queues.retain(|queue| queue.strong_count() > 0);
    }
    queues.push(queue);
}

/// What the thread that forks holds while it does, so that the child finds whole lists.
struct Locks {
    slot: MutexGuard<'static, Option<Arc<Process>>>,
    objects: MutexGuard<'static, Objects>,
    stats: farcall_stats::Held,
    moved: in_place::Held,
    helpers: in_place::Paused,
}

thread_local! {
    static HELD: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// Makes forks harmless from now on.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: handlers of the right type, which live as long as the program.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child));
    });
}

extern "C" fn prepare() {
    let _ = HELD.try_with(|held| {
        let slot = process::lock_slot();
        // Whoever holds the table of what is moved may look at our objects.
        let moved = in_place::hold_for_fork();
        // As who moves memory does, after the table.
        let helpers = in_place::pause();
        let (objects, stats) = (objects(), farcall_stats::hold_for_fork());
        held.replace(Some(Locks { slot, moved, objects, stats, helpers }))
    });
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let Ok(Some(Locks { mut slot, mut objects, stats, moved, helpers })) = HELD.try_with(RefCell::take)
    else {
        return;
    };
    stats.detach();
    helpers.detach();
    // Never dropped: the threads that would have to take part are the parent's.
    std::mem::forget(slot.take());
    abandon(&objects.fds);
    for (base, mapping) in &objects.mappings {
        make_private(*base, mapping);
    }
    // What is left of it are mappings of the program.
    moved.detach();
    // All this is the child's own now.
    objects.mappings.clear();
    objects.fds.clear();
    for queue in objects.queues.drain(..).filter_map(|queue| queue.upgrade()) {
        queue.orphan();
        std::mem::forget(queue);
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
fn make_private(base: usize, mapping: &Shared) {
    let base = std::ptr::with_exposed_provenance_mut(base);
    let prot = if mapping.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: replaces a mapping of our own by one of the same place and size; it is accessed by checked addresses only.
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
        assert!(!Born::here().is_inherited() && Born::here().require_here("x", "y").is_ok());
        let inherited = Born(FORKS.load(Ordering::Relaxed).wrapping_sub(1));
        let error = inherited.require_here("post_send", "queue pair 7").unwrap_err().to_string();
        assert!(error.contains("queue pair 7") && error.contains("fork"), "{error}");
    }
}
