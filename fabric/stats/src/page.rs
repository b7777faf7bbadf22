//! The process's segment, and the allocation of blocks in it.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use farcall_shm::{Mutex, fork};

use crate::format::{
    AT_EXE, AT_MAGIC, AT_PID, AT_START, AT_USED, BlockLayout, EXE_BYTES, FIRST_BLOCK, MAGIC, SEGMENT_BYTES,
    split_label,
};
use crate::read::start_ticks;
use crate::segment;

/// Created once; a forked child that uses it creates its own.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

pub(crate) struct Page {
    base: NonNull<u8>,
    started: Instant,
    slots: Mutex<BlockSlots>,
}

// SAFETY: the mapping is never unmapped. Its words are accessed as atomics only; everything else is written before a
// block is published. `slots` is guarded by its mutex.
unsafe impl Send for Page {}
// SAFETY: shared access uses atomics and the mutex only.
unsafe impl Sync for Page {}

pub(crate) struct BlockSlots {
    used: usize,
    /// Offsets of ended blocks, oldest first, reused for blocks of the same shape.
    ended: Vec<(BlockLayout, usize)>,
    /// Kinds of endpoints that the process has had, for the help texts of their metrics.
    kinds: Vec<Kind>,
}

/// Descriptions of the counters of one kind of endpoint.
struct Kind {
    name: String,
    names: &'static [&'static str],
    help: &'static [&'static str],
}

/// Maximum number of kinds that are stored; a process has a dozen.
const KINDS_MAX: usize = 256;

impl Page {
    /// Returns the process's page, created at first use.
    pub(crate) fn get() -> &'static Self {
        Self::existing().unwrap_or_else(|| {
            static MAKING: Mutex<()> = Mutex::new(());
            let _making = MAKING.lock();
            if let Some(made) = Self::existing() {
                return made;
            }
            let base = Self::open().unwrap_or_else(|error| {
                tracing::warn!("no statistics for `farcall stats`: no System V shared memory: {error}");
                let private = Box::leak(vec![0_u64; SEGMENT_BYTES / 8].into_boxed_slice());
                NonNull::from(private).cast()
            });
            let slots = BlockSlots { used: FIRST_BLOCK, ended: Vec::new(), kinds: Vec::new() };
            let page = Box::leak(Box::new(Self { base, started: Instant::now(), slots: Mutex::new(slots) }));
            PAGE.store(page, Ordering::Release);
            page
        })
    }

    fn existing() -> Option<&'static Self> {
        // SAFETY: the pointer is null, or points to a page that `get` leaked and that is never freed.
        unsafe { PAGE.load(Ordering::Acquire).as_ref() }
    }

    fn open() -> io::Result<NonNull<u8>> {
        segment::remove_stale_segments();
        let base = segment::create()?;
        fork::add_mapping(base.as_ptr(), SEGMENT_BYTES, true);
        let exe = std::env::args().collect::<Vec<_>>().join(" ");
        let exe = &exe.as_bytes()[..exe.len().min(EXE_BYTES)];
        // SAFETY: the range is inside the mapping, to which no other thread has a pointer yet.
        unsafe { base.add(AT_EXE).copy_from_nonoverlapping(NonNull::from(exe).cast(), exe.len()) };
        let pid = std::process::id();
        word(base, AT_PID).store(pid.into(), Ordering::Relaxed);
        word(base, AT_START).store(start_ticks(pid), Ordering::Relaxed);
        word(base, AT_USED).store(FIRST_BLOCK as u64, Ordering::Relaxed);
        word(base, AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(base)
    }

    /// Allocates space for a block; returns `None` if the page is full.
    pub(crate) fn allocate(&self, layout: BlockLayout) -> Option<NonNull<u8>> {
        let mut slots = self.slots.lock();
        let at = match slots.ended.iter().position(|(ended, _)| *ended == layout) {
            Some(reused) => slots.ended.remove(reused).1,
            None if slots.used + layout.len_bytes() <= SEGMENT_BYTES => {
                slots.used += layout.len_bytes();
                slots.used - layout.len_bytes()
            }
            None => return None,
        };
        // SAFETY: the check above keeps the block inside the mapping.
        Some(unsafe { self.base.add(at) })
    }

    /// Makes blocks that were allocated and filled visible to readers.
    pub(crate) fn publish(&self) {
        let slots = self.slots.lock();
        word(self.base, AT_USED).store(slots.used as u64, Ordering::Release);
    }

    /// Stores the descriptions of the counters of a kind of endpoint, if metrics report endpoints of this kind
    /// individually.
    pub(crate) fn describe(
        &self,
        label: &str,
        names: &'static [&'static str],
        help: &'static [&'static str],
    ) {
        let Some((name, _)) = split_label(label) else { return };
        let mut slots = self.slots.lock();
        if slots.kinds.len() < KINDS_MAX && slots.kinds.iter().all(|kind| kind.name != name) {
            slots.kinds.push(Kind { name, names, help });
        }
    }

    /// Returns the description of a counter of this process.
    pub(crate) fn help(kind: &str, counter: &str) -> Option<&'static str> {
        let slots = Self::existing()?.slots.lock();
        let kind = slots.kinds.iter().find(|known| known.name == kind)?;
        let at = kind.names.iter().position(|name| *name == counter)?;
        kind.help.get(at).copied()
    }

    /// Releases the space of a block. Its contents stay readable until the space is reused.
    pub(crate) fn release_block(&self, layout: BlockLayout, base: NonNull<u8>) {
        let at = base.addr().get() - self.base.addr().get();
        self.slots.lock().ended.push((layout, at));
    }

    /// Returns the nanoseconds since the page was created.
    pub(crate) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// The page's lock, held while a thread forks, so that the child finds consistent tables.
#[must_use]
pub struct LockedPage(#[expect(dead_code, reason = "held")] Option<MutexGuard<'static, BlockSlots>>);

/// Locks the page. Called before a fork by the forking thread; the result is dropped in parent and child. In the child,
/// the registry of [`farcall_shm::fork`] has replaced the page by private memory, which no other process reads.
pub fn lock_for_fork() -> LockedPage {
    LockedPage(Page::existing().map(|page| page.slots.lock()))
}

/// Called in a forked child that has statistics of its own: blocks created from now on are placed in a new page, and
/// those of the parent remain unchanged. The child must not drop blocks that it inherited, because their space belongs
/// to the parent.
pub fn renew_in_child() {
    PAGE.store(ptr::null_mut(), Ordering::Release);
}

/// Returns a word of mapped memory.
pub(crate) fn word<'a>(base: NonNull<u8>, at: usize) -> &'a AtomicU64 {
    // SAFETY: callers pass offsets of the format, which are multiples of 8 inside the page's mapping of `SEGMENT_BYTES`
    // or inside a block's private memory. The page's mapping is never removed, and a block's private memory is freed
    // only when the block is dropped. After publication these words are only accessed as atomics.
    unsafe { AtomicU64::from_ptr(base.add(at).cast().as_ptr()) }
}
