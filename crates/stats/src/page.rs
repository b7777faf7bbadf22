//! The process's file, mapped for writing, and the places of blocks in it.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::directory::{StatsError, create, directory, file_name, start_ticks, tidy};
use crate::format::{
    AT_EXE, AT_MAGIC, AT_PID, AT_START, AT_USED, EXE_BYTES, FILE_BYTES, FIRST_BLOCK, MAGIC, Shape,
};

static PAGE: OnceLock<Page> = OnceLock::new();

pub(crate) struct Page {
    base: NonNull<u8>,
    started: Instant,
    places: Mutex<Places>,
}

// SAFETY: the mapping is never unmapped; words in it are accessed as atomics only, everything else is written before a
// block is published.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

pub(crate) struct Places {
    used: usize,
    /// Ended blocks, oldest first, to be reused by blocks of the same shape.
    ended: Vec<(Shape, usize)>,
    /// The file, whose lock says that the process lives; none if the page is private.
    file: Option<File>,
}

impl Page {
    /// The process's page, made at first use.
    pub(crate) fn get() -> &'static Self {
        PAGE.get_or_init(|| {
            let opened = Self::open().map(|(base, file)| (base, Some(file))).or_else(|error| {
                tracing::warn!("no statistics for `farcall stats`: {error}");
                Self::private().map(|base| (base, None))
            });
            // Without even private memory of 8 MiB no program goes on for long.
            let (base, file) = opened.expect("8 MiB of address space");
            let places = Places { used: FIRST_BLOCK, ended: Vec::new(), file };
            Self { base, started: Instant::now(), places: Mutex::new(places) }
        })
    }

    fn open() -> Result<(NonNull<u8>, File), StatsError> {
        let directory = directory()?;
        tidy(&directory);
        let pid = std::process::id();
        let path = directory.join(file_name(pid, start_ticks(pid)));
        let io = |source| StatsError::Io { path: path.clone(), source };
        let file = create(&path).map_err(io)?;
        // Sparse: what no block uses costs nothing.
        file.set_len(FILE_BYTES as u64).map_err(io)?;
        // SAFETY: a new mapping of our own file at an address of the kernel's choice.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let base = NonNull::new(base.map_err(|e| io(e.into()))?.cast::<u8>()).expect("mmap returns no null");
        let exe = std::env::args().collect::<Vec<_>>().join(" ");
        let exe = &exe.as_bytes()[..exe.len().min(EXE_BYTES)];
        // SAFETY: inside the mapping, which nobody else has yet.
        unsafe { base.add(AT_EXE).copy_from_nonoverlapping(NonNull::from(exe).cast(), exe.len()) };
        word(base, AT_PID).store(pid.into(), Ordering::Relaxed);
        word(base, AT_START).store(start_ticks(pid), Ordering::Relaxed);
        word(base, AT_USED).store(FIRST_BLOCK as u64, Ordering::Relaxed);
        word(base, AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok((base, file))
    }

    fn private() -> Result<NonNull<u8>, StatsError> {
        // SAFETY: a new anonymous mapping.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let fail = |e: rustix::io::Errno| StatsError::Io { path: "private memory".into(), source: e.into() };
        Ok(NonNull::new(base.map_err(fail)?.cast()).expect("mmap returns no null"))
    }

    /// A place for a block; `None` if the page is full.
    pub(crate) fn place(&self, shape: Shape) -> Option<NonNull<u8>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match places.ended.iter().position(|(ended, _)| *ended == shape) {
            Some(reused) => places.ended.remove(reused).1,
            None if places.used + shape.len_bytes() <= FILE_BYTES => {
                places.used += shape.len_bytes();
                places.used - shape.len_bytes()
            }
            None => return None,
        };
        // SAFETY: inside the mapping by the check above.
        Some(unsafe { self.base.add(at) })
    }

    /// Lets readers see blocks that were placed and filled.
    pub(crate) fn publish(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        word(self.base, AT_USED).store(places.used as u64, Ordering::Release);
    }

    /// Gives a place back. Its content stays readable until it is reused.
    pub(crate) fn retire(&self, shape: Shape, base: NonNull<u8>) {
        let at = base.addr().get() - self.base.addr().get();
        self.places.lock().unwrap_or_else(PoisonError::into_inner).ended.push((shape, at));
    }

    /// Nanoseconds since the page was made.
    pub(crate) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

/// The page, held still across a fork.
#[must_use]
pub struct Held(Option<(&'static Page, MutexGuard<'static, Places>)>);

/// Holds the page still, for whoever handles forks: call before one, and drop the result in the parent.
pub fn hold_for_fork() -> Held {
    let held = PAGE.get().map(|page| (page, page.places.lock().unwrap_or_else(PoisonError::into_inner)));
    Held(held)
}

impl Held {
    /// In the child: what it counts from now on is its own affair, and nobody's to read.
    pub fn detach(self) {
        let Some((page, mut places)) = self.0 else { return };
        // The lock is the parent's, which goes on holding it.
        drop(places.file.take());
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: replaces the page by memory of the same place and size; its words are atomics, valid for all bytes.
        let _ = unsafe { mmap_anonymous(page.base.as_ptr().cast(), FILE_BYTES, prot, flags) };
    }
}

/// A word of mapped memory.
pub(crate) fn word<'a>(base: NonNull<u8>, at: usize) -> &'a AtomicU64 {
    // SAFETY: callers pass offsets of the format, which are inside the mapping and aligned; mappings are never removed,
    // and these words are only accessed as atomics.
    unsafe { AtomicU64::from_ptr(base.add(at).cast().as_ptr()) }
}
