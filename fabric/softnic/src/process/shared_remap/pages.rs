//! Pages of the program whose bytes are in a sealed memfd.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use farcall_shm::sealed_memfd;
use rustix::fs::{self, FallocateFlags};
use rustix::process::{Resource, getrlimit};

use crate::process::maps::{Mapped, Source};

/// Length of the hole in the file after the pages. A program that enlarges its mapping later finds zeros there, as
/// after any anonymous memory, and not the end of a file.
const GROWTH_BYTES: u64 = 1 << 40;

pub(crate) struct SharedPages {
    fd: OwnedFd,
    major: u32,
    minor: u32,
    inode: u64,
    len_bytes: u64,
}

fn pointer(addr: u64) -> *mut libc::c_void {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

pub(super) fn prot_of(part: &Mapped) -> libc::c_int {
    let bit = |has: bool, bit| if has { bit } else { 0 };
    bit(part.readable, libc::PROT_READ)
        | bit(part.writable, libc::PROT_WRITE)
        | bit(part.executable, libc::PROT_EXEC)
}

/// Repeats `call` until `len_bytes` are transferred. `call` receives the number of bytes done and left.
fn transfer_all(len_bytes: u64, call: impl Fn(u64, usize) -> libc::ssize_t) -> bool {
    let mut done = 0;
    while done < len_bytes {
        match call(done, (len_bytes - done) as usize) {
            moved @ 1.. => done += moved as u64,
            0 => return false,
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
    true
}

impl SharedPages {
    /// Moves `len_bytes` of complete pages at `addr` to a new memfd, which is then mapped at their address. Returns
    /// `None` and changes nothing if the system does not permit it.
    ///
    /// # Safety
    /// The pages must be private anonymous memory, readable and writable, that no other thread or process accesses
    /// during the call.
    pub(crate) unsafe fn remap(addr: u64, len_bytes: u64) -> Option<Self> {
        let made = Self::create(len_bytes)?;
        // SAFETY: by the contract of this function `len_bytes` at `addr` are mapped; the kernel reads them.
        if !unsafe { made.fill_from(addr) } {
            return None;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: by the contract of this function no other thread accesses the pages. The call replaces them by a
        // mapping of the same address, size and bytes.
        let result =
            unsafe { libc::mmap(pointer(addr), len_bytes as usize, prot, flags, made.fd.as_raw_fd(), 0) };
        if result == libc::MAP_FAILED {
            // The kernel reports an error before it removes a mapping, except if it lacks a few bytes of its own
            // memory.
            return None;
        }
        Some(made)
    }

    /// Creates a sealed memfd of `len_bytes` bytes, all of them allocated, followed by a hole.
    fn create(len_bytes: u64) -> Option<Self> {
        // Writing beyond this limit would raise a signal that ends the program.
        if getrlimit(Resource::Fsize).current.is_some() {
            return None;
        }
        let fd = sealed_memfd("farcall-registered", len_bytes, GROWTH_BYTES).ok()?;
        let stat = fs::fstat(&fd).ok()?;
        let (major, minor) = (fs::major(stat.st_dev), fs::minor(stat.st_dev));
        Some(Self { fd, major, minor, inode: stat.st_ino, len_bytes })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns whether a mapping is a shared one of this memfd. A private mapping of it belongs to the program.
    pub(crate) fn backs(&self, part: &Mapped) -> bool {
        matches!(part.source, Source::File { major, minor, inode, .. }
            if part.shared && (major, minor, inode) == (self.major, self.minor, self.inode))
    }

    /// Copies the memory at `addr` into the file.
    ///
    /// # Safety
    /// The memory must be mapped for the length of the file.
    unsafe fn fill_from(&self, addr: u64) -> bool {
        transfer_all(self.len_bytes, |done, left| {
            // SAFETY: by the contract of this function the memory is mapped; the kernel reads it.
            unsafe { libc::pwrite(self.fd.as_raw_fd(), pointer(addr + done), left, done as libc::off_t) }
        })
    }

    /// Copies a part of the file to the memory at `addr`.
    ///
    /// # Safety
    /// The memory must be mapped, and no other thread or process may access it.
    pub(super) unsafe fn copy_to(&self, addr: u64, offset: u64, len_bytes: u64) -> bool {
        transfer_all(len_bytes, |done, left| {
            let (to, from) = (pointer(addr + done), (offset + done) as libc::off_t);
            // SAFETY: by the contract of this function the memory is mapped and not accessed otherwise; the kernel
            // writes to it.
            unsafe { libc::pread(self.fd.as_raw_fd(), to, left, from) }
        })
    }

    /// Replaces a mapping of the file by anonymous memory with the same bytes. Returns `false` if the system does not
    /// permit it.
    ///
    /// # Safety
    /// `part` must describe an existing mapping, and no other thread or process may access it during the call.
    pub(crate) unsafe fn restore_private(&self, part: &Mapped) -> bool {
        let Source::File { offset, .. } = part.source else { return false };
        let (place, len) = (pointer(part.start), part.len_bytes() as usize);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: by the contract of this function `part` is mapped and not accessed otherwise. The calls replace it by
        // a mapping of the same address, size and bytes.
        unsafe {
            if libc::mmap(place, len, prot, flags, -1, 0) == libc::MAP_FAILED {
                return false;
            }
            if !self.copy_to(part.start, offset, part.len_bytes()) {
                // The bytes are still in the file, so this restores the previous state.
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                libc::mmap(place, len, prot_of(part), flags, self.fd.as_raw_fd(), offset as libc::off_t);
                return false;
            }
            if prot_of(part) != prot {
                libc::mprotect(place, len, prot_of(part));
            }
        }
        true
    }

    /// Like [`SharedPages::restore_private`], while other threads access the memory. It becomes a private mapping of
    /// the file, in one step for all threads; then the kernel copies every page, as if each were written to. No write
    /// at any time is lost. Returns `false` if part of it remains in the file.
    ///
    /// # Safety
    /// `part` must describe an existing mapping, which must remain during the call.
    pub(crate) unsafe fn restore_private_with_threads(&self, part: &Mapped) -> bool {
        let (place, len) = (pointer(part.start), part.len_bytes() as usize);
        // SAFETY: by the contract of this function `part` is mapped. The kernel copies its pages and changes no byte.
        unsafe { self.make_private(part) && libc::madvise(place, len, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Makes a mapping of the file private: later writes to it do not change the file.
    ///
    /// # Safety
    /// `part` must describe an existing mapping, which must remain during the call.
    pub(super) unsafe fn make_private(&self, part: &Mapped) -> bool {
        let Source::File { offset, .. } = part.source else { return false };
        let (place, len) = (pointer(part.start), part.len_bytes() as usize);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: by the contract of this function `part` is mapped. The call replaces it by a mapping of the same
        // address, size and bytes.
        let result = unsafe {
            libc::mmap(place, len, prot_of(part), flags, self.fd.as_raw_fd(), offset as libc::off_t)
        };
        result != libc::MAP_FAILED
    }

    /// Frees the memory of the file, which is no longer needed.
    pub(crate) fn free_memory(&self) {
        let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fs::fallocate(&self.fd, whole, 0, self.len_bytes + GROWTH_BYTES) {
            tracing::debug!("softnic: registered pages stay allocated as long as peers map them: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::maps::Maps;

    fn mapped_at(addr: u64) -> Mapped {
        Maps::open().unwrap().map(Result::unwrap).find(|part| part.start <= addr && addr < part.end).unwrap()
    }

    /// Returns the address of `count` anonymous pages for a test.
    fn pages(count: usize) -> u64 {
        let len = count * rustix::param::page_size();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: creates a mapping at an address that the kernel chooses, so it aliases no memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        base.expose_provenance() as u64
    }

    fn word(addr: u64) -> *mut u64 {
        pointer(addr).cast()
    }

    #[test]
    fn moves_pages_out_and_back_with_their_bytes() {
        let page = rustix::param::page_size() as u64;
        for with_other_threads in [false, true] {
            let base = pages(6);
            // SAFETY: the pages were mapped by this test, and no other code accesses them.
            unsafe {
                word(base + page).write(7);
                word(base + 4 * page).write(9);
                let moved = SharedPages::remap(base + page, 4 * page).unwrap();
                let part = mapped_at(base + page);
                assert!(moved.backs(&part) && part.shared && part.len_bytes() == 4 * page);
                assert!(mapped_at(base).source == Source::Anonymous, "the neighbour is as it was");
                assert_eq!((word(base + page).read(), word(base + 2 * page).read()), (7, 0));
                word(base + 2 * page).write(8);
                let mut seen = [0_u8; 8];
                rustix::io::pread(&moved.fd, &mut seen, page).unwrap();
                assert_eq!(u64::from_ne_bytes(seen), 8, "what is written there is in the file");
                let is_back = if with_other_threads {
                    moved.restore_private_with_threads(&part)
                } else {
                    moved.restore_private(&part)
                };
                assert!(is_back);
                moved.free_memory();
                assert!(!moved.backs(&mapped_at(base + page)) && !mapped_at(base + page).shared);
                let words = [0, 1, 2, 3, 4, 5].map(|at| word(base + at * page).read());
                assert_eq!(words, [0, 7, 8, 0, 9, 0]);
                word(base + 2 * page).write(10);
                assert_eq!(word(base + 2 * page).read(), 10);
                // After it is freed, it reads as zero, like anonymous memory.
                assert_eq!(libc::madvise(pointer(base), 6 * page as usize, libc::MADV_DONTNEED), 0);
                let words = [0, 1, 2, 3, 4, 5].map(|at| word(base + at * page).read());
                assert_eq!(words, [0; 6]);
                libc::munmap(pointer(base), 6 * page as usize);
            }
        }
    }

    #[test]
    fn protections_are_kept_on_the_way_back() {
        let page = rustix::param::page_size();
        let base = pages(1);
        // SAFETY: the page was mapped by this test, and no other code accesses it.
        unsafe {
            let moved = SharedPages::remap(base, page as u64).unwrap();
            libc::mprotect(pointer(base), page, libc::PROT_READ);
            assert!(moved.restore_private(&mapped_at(base)));
            let part = mapped_at(base);
            assert!(part.readable && !part.writable && !part.shared);
            libc::munmap(pointer(base), page);
        }
    }

    #[test]
    fn a_mapping_that_grows_finds_zeros_and_no_end() {
        let page = rustix::param::page_size();
        let base = pages(1);
        // SAFETY: the page was mapped by this test, and no other code accesses it.
        unsafe {
            let moved = SharedPages::remap(base, page as u64).unwrap();
            word(base).write(3);
            let grown = libc::mremap(pointer(base), page, 4 * page, libc::MREMAP_MAYMOVE);
            assert_ne!(grown, libc::MAP_FAILED);
            let base = grown.expose_provenance() as u64;
            assert_eq!((word(base).read(), word(base + 3 * page as u64).read()), (3, 0));
            assert!(moved.backs(&mapped_at(base)));
            libc::munmap(grown, 4 * page);
        }
    }
}
