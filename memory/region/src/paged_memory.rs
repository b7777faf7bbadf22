//! The memory of the region and its staging area. All accesses to their pages are in this module.
//!
//! Invariant: the thread that owns a [`PagedMemory`] never accesses a missing page, because it would wait for itself.
//! It therefore reads no byte of the region at all: a page that it considers resident may be missing (the program may
//! have called madvise(2)). It moves pages out with UFFDIO_MOVE, which reports a missing page, and reads them in the
//! staging area, which only it uses.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use farcall_memory::PAGE_BYTES;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap,
};

use crate::uffd::{Fault, FaultMode, Uffd};

/// Private anonymous memory.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the pointer only denotes a mapping, which is not tied to a thread. `Mapping` never dereferences it; it passes
// it to system calls. `RemoteRegion::bytes`, `LocalFaultBaseline::bytes` and `PagedMemory::staged_bytes` create
// references and argue each for itself that no access conflicts.
unsafe impl Send for Mapping {}
// SAFETY: through `&Mapping` only the address and the length can be read; `discard_pages` is a system call on a range
// whose callers hold no references.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a mapping that a forked child does not inherit and in which all pages are missing. If the process locks
    /// its memory (`mlockall`), the kernel populates new mappings immediately, except those without access rights. The
    /// mapping is therefore created without any, and unlocked before access is enabled.
    fn new(len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing mapping is replaced. All later
        // calls get the address and the length of this new mapping, into which no reference exists yet.
        unsafe {
            let address = mmap_anonymous(std::ptr::null_mut(), len_bytes, ProtFlags::empty(), flags)?;
            let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
            let mapping = Self { address, len_bytes };
            let start = address.as_ptr().cast();
            munlock(start, len_bytes)?;
            madvise(start, len_bytes, Advice::LinuxDontFork)?;
            // Faults and moves have the granularity of a small page. Kernels without huge pages reject this call,
            // which is harmless.
            let _ = madvise(start, len_bytes, Advice::LinuxNoHugepage);
            mprotect(start, len_bytes, MprotectFlags::READ | MprotectFlags::WRITE)?;
            Ok(mapping)
        }
    }

    pub const fn address(&self) -> NonNull<u8> {
        self.address
    }

    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn of_page(&self, page: usize) -> usize {
        assert!((page + 1) * PAGE_BYTES <= self.len_bytes, "page {page} of {} bytes", self.len_bytes);
        self.address.addr().get() + page * PAGE_BYTES
    }

    fn discard_pages(&self, first: usize, count: usize) -> io::Result<()> {
        self.of_page(first + count - 1);
        // SAFETY: `of_page` has asserted that the range is inside this mapping. No reference observes the change:
        // `free_slots` takes `&mut self`, so no slice of `staged_bytes` is alive, and `unpoison` is called for
        // poisoned pages only, which no thread can read.
        Ok(unsafe {
            madvise(
                self.address.as_ptr().add(first * PAGE_BYTES).cast(),
                count * PAGE_BYTES,
                Advice::LinuxDontNeed,
            )
        }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `Mapping::new` created exactly this range. The slices of it borrow from `RemoteRegion`,
        // `LocalFaultBaseline` or `PagedMemory`, each of which holds the mapping, so none is alive when it is dropped.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len_bytes) };
    }
}

/// Result of moving a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Yes,
    /// There is no page: the program has removed it.
    Missing,
    /// It cannot be moved now: a device is reading or writing it.
    Busy,
}

/// The region and its staging area, addressed by page and slot numbers.
pub(crate) struct PagedMemory {
    uffd: Uffd,
    region: Arc<Mapping>,
    staging: Mapping,
    /// `true` for staging slots that hold a page.
    occupied: Vec<bool>,
}

impl PagedMemory {
    /// Creates a region of `len_bytes` bytes, all of whose pages are missing, and `slots` staging slots.
    pub fn new(len_bytes: usize, slots: usize) -> io::Result<(Self, FaultMode)> {
        let (uffd, mode) = Uffd::open()?;
        let (region, staging) = (Mapping::new(len_bytes)?, Mapping::new(slots * PAGE_BYTES)?);
        for mapping in [&region, &staging] {
            // SAFETY: both mappings were created above and belong to this value. `Uffd::register` requires that the
            // owner of the descriptor never accesses a missing page of the range: `PagedMemory` reads only staging
            // slots that hold a page (`staged_bytes`).
            unsafe { uffd.register(mapping.address.addr().get(), mapping.len_bytes) }?;
        }
        let occupied = vec![false; slots];
        Ok((Self { uffd, region: Arc::new(region), staging, occupied }, mode))
    }

    pub const fn region(&self) -> &Arc<Mapping> {
        &self.region
    }

    pub const fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    /// Returns the page of a fault; `None` if it is outside the region.
    pub fn page_of(&self, fault: Fault) -> Option<usize> {
        let offset = usize::try_from(fault.address).ok()?.checked_sub(self.region.address.addr().get())?;
        (offset < self.region.len_bytes).then_some(offset / PAGE_BYTES)
    }

    /// Fills missing pages with `bytes`. An error contains the number of pages that were filled before it.
    pub fn install(&self, first: usize, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        self.region.of_page(first + bytes.len() / PAGE_BYTES - 1);
        // SAFETY: `Uffd::copy` requires a registered range. `new` registered the region, and `of_page` has asserted
        // that the range is inside it.
        let copied = unsafe { self.uffd.copy(self.region.of_page(first), bytes) };
        copied.map_err(|(done, error)| (done / PAGE_BYTES, error))
    }

    /// Moves a page from the region to a staging slot.
    ///
    /// # Panics
    /// If the slot holds a page.
    pub fn move_out(&mut self, page: usize, slot: usize) -> Moved {
        assert!(!self.occupied[slot], "place {slot} has a page");
        let (to, from) = (self.staging.of_page(slot), self.region.of_page(page));
        // SAFETY: `Uffd::move_pages` requires registered ranges of private anonymous memory. `new` mapped both so and
        // registered them; `of_page` has asserted that both pages are inside their mappings.
        let moved = move_result(unsafe { self.uffd.move_pages(to, from, PAGE_BYTES) });
        self.occupied[slot] = moved == Moved::Yes;
        moved
    }

    /// Moves a page from a staging slot back to its position in the region.
    ///
    /// # Panics
    /// If the slot holds no page.
    pub fn move_in(&mut self, slot: usize, page: usize) -> Moved {
        assert!(self.occupied[slot], "place {slot} has no page");
        let (to, from) = (self.region.of_page(page), self.staging.of_page(slot));
        // SAFETY: `Uffd::move_pages` requires registered ranges of private anonymous memory. `new` mapped both so and
        // registered them; `of_page` has asserted that both pages are inside their mappings.
        let moved = move_result(unsafe { self.uffd.move_pages(to, from, PAGE_BYTES) });
        self.occupied[slot] = moved != Moved::Yes;
        moved
    }

    /// Returns the bytes of a page that was moved out.
    ///
    /// # Panics
    /// If the slot holds no page.
    pub fn staged_bytes(&self, slot: usize) -> &[u8] {
        assert!(self.occupied[slot], "place {slot} has no page");
        // SAFETY: the slot holds a page (asserted above), so the access does not fault. Only this value knows the
        // address of the staging mapping, and all methods that change slots take `&mut self`, so the bytes do not
        // change during the borrow of `&self`.
        unsafe {
            std::slice::from_raw_parts(self.staging.address.as_ptr().add(slot * PAGE_BYTES), PAGE_BYTES)
        }
    }

    /// Returns the memory of staging slots to the kernel.
    pub fn free_slots(&mut self, first: usize, count: usize) -> io::Result<()> {
        self.staging.discard_pages(first, count)?;
        self.occupied[first..first + count].fill(false);
        Ok(())
    }

    /// Poisons the page: accesses raise SIGBUS. Returns `false` if the page is present.
    pub fn poison(&self, page: usize) -> bool {
        // SAFETY: `Uffd::poison` requires a registered range. `new` registered the region, and `of_page` asserts that
        // the page is inside it.
        unsafe { self.uffd.poison(self.region.of_page(page), PAGE_BYTES) }.is_ok()
    }

    /// Removes the poison of a page, which is missing then.
    pub fn unpoison(&self, page: usize) -> io::Result<()> {
        self.region.discard_pages(page, 1)
    }

    /// Write-protects all present pages: threads that write to them wait.
    pub fn protect_all(&self) -> io::Result<()> {
        // SAFETY: `Uffd::protect` requires a registered range; this is the whole region, which `new` registered.
        unsafe { self.uffd.protect(self.region.of_page(0), self.region.len_bytes, true) }
    }

    /// Removes the write protection of all pages.
    pub fn unprotect_all(&self) -> io::Result<()> {
        // SAFETY: `Uffd::protect` requires a registered range; this is the whole region, which `new` registered.
        unsafe { self.uffd.protect(self.region.of_page(0), self.region.len_bytes, false) }
    }

    /// Removes the write protection of a page.
    pub fn unprotect(&self, page: usize) -> io::Result<()> {
        // SAFETY: `Uffd::protect` requires a registered range. `new` registered the region, and `of_page` asserts that
        // the page is inside it.
        unsafe { self.uffd.protect(self.region.of_page(page), PAGE_BYTES, false) }
    }

    /// Wakes the threads that wait for the page; they retry their access.
    pub fn wake(&self, page: usize) -> io::Result<()> {
        self.uffd.wake(self.region.of_page(page), PAGE_BYTES)
    }
}

/// Makes the region inaccessible. Without the userfaultfd it would be ordinary memory whose missing pages read as
/// zeros.
impl Drop for PagedMemory {
    fn drop(&mut self) {
        let (address, len_bytes) = (self.region.address.as_ptr().cast(), self.region.len_bytes);
        // SAFETY: the range is the mapping created by `new`. Removing access rights invalidates no memory: a later
        // access raises SIGSEGV instead of returning wrong bytes.
        if unsafe { mprotect(address, len_bytes, MprotectFlags::empty()) }.is_err() {
            std::process::abort();
        }
    }
}

fn move_result(moved: Result<(), (usize, Errno)>) -> Moved {
    match moved {
        Ok(()) => Moved::Yes,
        Err((_, Errno::NOENT)) => Moved::Missing,
        Err(_) => Moved::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Entry point of the child process: accesses the region after its `PagedMemory` was dropped.
    #[test]
    #[ignore = "it is killed; the next test runs it"]
    fn child_entry() {
        let (paged, _) = PagedMemory::new(4 * PAGE_BYTES, 1).unwrap();
        let mapping = Arc::clone(paged.region());
        paged.install(1, &[5; PAGE_BYTES]).unwrap();
        drop(paged);
        // SAFETY: `mapping` keeps the range mapped. The access is expected to raise SIGSEGV, which the parent checks.
        let read = unsafe { mapping.address().as_ptr().add(3 * PAGE_BYTES).read_volatile() };
        println!("read {read}");
    }

    #[test]
    fn blocks_access_to_a_region_without_its_pager() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "paged_memory::tests::child_entry", "--ignored"]);
        let completed = command.output().unwrap();
        assert_eq!(completed.status.signal(), Some(libc::SIGSEGV), "{completed:?}");
    }

    #[test]
    fn moves_pages_out_and_in_and_reports_missing_ones() {
        let (mut paged, _) = PagedMemory::new(4 * PAGE_BYTES, 2).unwrap();
        paged.install(1, &[5; 2 * PAGE_BYTES]).unwrap();
        assert_eq!(paged.install(0, &[6; 4 * PAGE_BYTES]).unwrap_err(), (1, Errno::EXIST));
        assert_eq!(paged.move_out(3, 0), Moved::Missing);
        assert_eq!(paged.move_out(1, 0), Moved::Yes);
        assert!(paged.staged_bytes(0).iter().all(|byte| *byte == 5));
        assert!(paged.poison(1) && !paged.poison(2), "only what is missing is poisoned");
        assert_eq!(paged.move_in(0, 1), Moved::Busy, "it is poisoned");
        paged.unpoison(1).unwrap();
        assert_eq!(paged.move_in(0, 1), Moved::Yes);
        assert_eq!(paged.move_out(1, 1), Moved::Yes);
        paged.free_slots(1, 1).unwrap();
        assert_eq!((paged.move_out(1, 1), paged.move_out(2, 1)), (Moved::Missing, Moved::Yes));
    }
}
