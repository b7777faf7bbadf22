//! The region's memory and a place beside it, where pages are taken to: all that touches them is here.
//!
//! The thread that holds this must never touch a page that is missing: it would wait for itself. So it reads no byte of
//! the region, ever, since pages may be missing that it believes to be there (a program may have called madvise(2)). It
//! takes pages out by UFFDIO_MOVE, which tells if there is none, and reads them at the place that is its own.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use farcall_memory::PAGE_BYTES;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap,
};

use crate::uffd::{Fault, Uffd, Waits};

/// Private anonymous memory.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: memory belongs to no thread; who may touch which bytes of it is decided by those who hand out references.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new one, that a forked child does not have. Nothing of it is there, also where the process locks its memory:
    /// then all that is mapped is there at once, but for what must not be touched.
    fn new(len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice, which nobody else knows.
        unsafe {
            let address = mmap_anonymous(std::ptr::null_mut(), len_bytes, ProtFlags::empty(), flags)?;
            let address = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
            let mapping = Self { address, len_bytes };
            let start = address.as_ptr().cast();
            munlock(start, len_bytes)?;
            madvise(start, len_bytes, Advice::LinuxDontFork)?;
            // A page is what is missing, taken out and put back. Without huge pages in the kernel there are none.
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

    fn forget_pages(&self, first: usize, count: usize) -> io::Result<()> {
        self.of_page(first + count - 1);
        // SAFETY: pages of this mapping; callers hold no reference to them.
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
        // SAFETY: mapped above; whoever held references into it has ended before its owner.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len_bytes) };
    }
}

/// What became of a page that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Yes,
    /// There is no page: somebody took it away.
    Missing,
    /// It cannot be moved now: a device is writing to it, or reading it.
    Busy,
}

/// The region and its staging place, by page numbers.
pub(crate) struct PagedMemory {
    uffd: Uffd,
    region: Arc<Mapping>,
    staging: Mapping,
    /// Which places have a page.
    occupied: Vec<bool>,
}

impl PagedMemory {
    /// A region all of which is missing, and so many places.
    pub fn new(len_bytes: usize, places: usize) -> io::Result<(Self, Waits)> {
        let (uffd, waits) = Uffd::open()?;
        let (region, staging) = (Mapping::new(len_bytes)?, Mapping::new(places * PAGE_BYTES)?);
        for mapping in [&region, &staging] {
            // SAFETY: our own mappings; this type touches no page that is missing.
            unsafe { uffd.register(mapping.address.addr().get(), mapping.len_bytes) }?;
        }
        let occupied = vec![false; places];
        Ok((Self { uffd, region: Arc::new(region), staging, occupied }, waits))
    }

    pub const fn region(&self) -> &Arc<Mapping> {
        &self.region
    }

    pub const fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    /// The page of a fault; `None` if it is not of the region.
    pub fn page_of(&self, fault: Fault) -> Option<usize> {
        let offset = usize::try_from(fault.address).ok()?.checked_sub(self.region.address.addr().get())?;
        (offset < self.region.len_bytes).then_some(offset / PAGE_BYTES)
    }

    /// Puts pages where they are missing. An error tells how many are there now.
    pub fn install(&self, first: usize, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        self.region.of_page(first + bytes.len() / PAGE_BYTES - 1);
        // SAFETY: pages of the region, which is registered.
        let copied = unsafe { self.uffd.copy(self.region.of_page(first), bytes) };
        copied.map_err(|(done, error)| (done / PAGE_BYTES, error))
    }

    /// Takes a page out of the region.
    ///
    /// # Panics
    /// If the place has a page.
    pub fn take_out(&mut self, page: usize, place: usize) -> Moved {
        assert!(!self.occupied[place], "place {place} has a page");
        let (to, from) = (self.staging.of_page(place), self.region.of_page(page));
        // SAFETY: both are registered, and private anonymous memory.
        let moved = judged(unsafe { self.uffd.move_pages(to, from, PAGE_BYTES) });
        self.occupied[place] = moved == Moved::Yes;
        moved
    }

    /// Puts a page back where it was taken from.
    ///
    /// # Panics
    /// If the place has none.
    pub fn put_back(&mut self, place: usize, page: usize) -> Moved {
        assert!(self.occupied[place], "place {place} has no page");
        let (to, from) = (self.region.of_page(page), self.staging.of_page(place));
        // SAFETY: as above.
        let moved = judged(unsafe { self.uffd.move_pages(to, from, PAGE_BYTES) });
        self.occupied[place] = moved != Moved::Yes;
        moved
    }

    /// The bytes of a page that was taken out.
    ///
    /// # Panics
    /// If the place has none.
    pub fn taken_out(&self, place: usize) -> &[u8] {
        assert!(self.occupied[place], "place {place} has no page");
        // SAFETY: the page is there, and nobody else knows of this mapping; what changes it takes `&mut self`.
        unsafe {
            std::slice::from_raw_parts(self.staging.address.as_ptr().add(place * PAGE_BYTES), PAGE_BYTES)
        }
    }

    /// Gives the memory of places back to the system.
    pub fn free_places(&mut self, first: usize, count: usize) -> io::Result<()> {
        self.staging.forget_pages(first, count)?;
        self.occupied[first..first + count].fill(false);
        Ok(())
    }

    /// Whoever touches the page gets SIGBUS. False: the page is there.
    pub fn poison(&self, page: usize) -> bool {
        // SAFETY: a page of the region, which is registered.
        unsafe { self.uffd.poison(self.region.of_page(page), PAGE_BYTES) }.is_ok()
    }

    /// The page is missing again.
    pub fn lift_poison(&self, page: usize) -> io::Result<()> {
        self.region.forget_pages(page, 1)
    }

    /// Whoever writes to a page that is there waits.
    pub fn protect_all(&self) -> io::Result<()> {
        // SAFETY: the region, which is registered.
        unsafe { self.uffd.protect(self.region.of_page(0), self.region.len_bytes, true) }
    }

    /// Nobody who writes waits any more.
    pub fn unprotect_all(&self) -> io::Result<()> {
        // SAFETY: as above.
        unsafe { self.uffd.protect(self.region.of_page(0), self.region.len_bytes, false) }
    }

    /// Nobody who writes to this page waits any more.
    pub fn unprotect(&self, page: usize) -> io::Result<()> {
        // SAFETY: a page of the region, which is registered.
        unsafe { self.uffd.protect(self.region.of_page(page), PAGE_BYTES, false) }
    }

    /// Lets who waits for the page try again.
    pub fn wake(&self, page: usize) -> io::Result<()> {
        self.uffd.wake(self.region.of_page(page), PAGE_BYTES)
    }
}

/// Without its holder the region would be ordinary memory, where missing pages are zeros. So first nobody can touch it
/// any more.
impl Drop for PagedMemory {
    fn drop(&mut self) {
        let (address, len_bytes) = (self.region.address.as_ptr().cast(), self.region.len_bytes);
        // SAFETY: our own mapping; whoever touches it from now on gets SIGSEGV, and no wrong bytes.
        if unsafe { mprotect(address, len_bytes, MprotectFlags::empty()) }.is_err() {
            std::process::abort();
        }
    }
}

fn judged(moved: Result<(), (usize, Errno)>) -> Moved {
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

    /// In the other process: what is touched when its holder has gone.
    #[test]
    #[ignore = "it is killed; the next test runs it"]
    fn child_entry() {
        let (paged, _) = PagedMemory::new(4 * PAGE_BYTES, 1).unwrap();
        let mapping = Arc::clone(paged.region());
        paged.install(1, &[5; PAGE_BYTES]).unwrap();
        drop(paged);
        // SAFETY: mapped; whether it may be read is what is looked for.
        let read = unsafe { mapping.address().as_ptr().add(3 * PAGE_BYTES).read_volatile() };
        println!("read {read}");
    }

    #[test]
    fn without_its_pager_a_region_is_out_of_reach() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "paged_memory::tests::child_entry", "--ignored"]);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
    }

    #[test]
    fn pages_go_out_and_come_back_with_their_bytes_and_missing_ones_are_told_of() {
        let (mut paged, _) = PagedMemory::new(4 * PAGE_BYTES, 2).unwrap();
        paged.install(1, &[5; 2 * PAGE_BYTES]).unwrap();
        assert_eq!(paged.install(0, &[6; 4 * PAGE_BYTES]).unwrap_err(), (1, Errno::EXIST));
        assert_eq!(paged.take_out(3, 0), Moved::Missing);
        assert_eq!(paged.take_out(1, 0), Moved::Yes);
        assert!(paged.taken_out(0).iter().all(|byte| *byte == 5));
        assert!(paged.poison(1) && !paged.poison(2), "only what is missing is poisoned");
        assert_eq!(paged.put_back(0, 1), Moved::Busy, "it is poisoned");
        paged.lift_poison(1).unwrap();
        assert_eq!(paged.put_back(0, 1), Moved::Yes);
        assert_eq!(paged.take_out(1, 1), Moved::Yes);
        paged.free_places(1, 1).unwrap();
        assert_eq!((paged.take_out(1, 1), paged.take_out(2, 1)), (Moved::Missing, Moved::Yes));
    }
}
