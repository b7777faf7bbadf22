//! Mapped memory. It is allocated first, or reserved within a limit ([`MemoryReservation`]), so that no later access
//! fails; or it is not accessed before it is allocated ([`Segment::create_sparse`]). Sealed memfds can be passed to
//! another process and cannot be truncated while they are mapped.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use farcall_verbs::{Error, Result};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::fork::{self, Generation};
use crate::free_memory::{MemoryReservation, require_memory};
use crate::memory::SharedMem;

/// A mapping that is unmapped when it is dropped.
pub struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is a range of addresses, valid in all threads. `SharedMem` defines how its bytes are accessed.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only exposes the range of addresses; its fields never change, and only `drop` unmaps.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len_bytes` of a file, shared, from `offset` on; a forked child gets a private copy instead. The bytes must
    /// be allocated ([`allocate`]) or reserved ([`MemoryReservation`]) and stay so; otherwise an access terminates the
    /// process.
    ///
    /// # Errors
    /// Returns an error if the system refuses the mapping.
    fn of_file(fd: BorrowedFd<'_>, offset: u64, len_bytes: usize, writable: bool) -> Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses aliases no existing memory.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), len_bytes, prot, MapFlags::SHARED, fd, offset) }
            .map_err(|e| Error::os("mmap", format!("map {len_bytes} bytes of shared memory"), e))?;
        let base = NonNull::new(base.cast()).expect("mmap returns no null");
        fork::add_mapping(base.as_ptr(), len_bytes, writable);
        Ok(Self { base, len_bytes })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        fork::remove_mapping(self.base());
        // SAFETY: `of_file` created this mapping, and every user holds an `Arc<Mapping>`, so no user is left. A failure
        // leaks the mapping, which is safe.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

const SEALS: SealFlags = SealFlags::from_bits_retain(SealFlags::SHRINK.bits() | SealFlags::GROW.bits());

/// Allocates a range of a file, so that no later access to a mapping of it can fail.
///
/// # Errors
/// Returns an error if there is no memory (see [`require_memory`]) or no space for it, or if the file system does not
/// support it.
pub(crate) fn allocate(file: impl AsFd, offset: u64, len_bytes: u64) -> rustix::io::Result<()> {
    require_memory(len_bytes)?;
    retry_on_intr(|| fs::fallocate(file.as_fd(), FallocateFlags::empty(), offset, len_bytes))
}

/// Creates a memfd sealed against resizing: `len_bytes`, all of them allocated, followed by a hole of `hole_bytes`.
///
/// # Errors
/// Returns an error if the system has no memory or no descriptor for it.
pub fn sealed_memfd(name: &str, len_bytes: u64, hole_bytes: u64) -> Result<OwnedFd> {
    let error = |operation, what: &str, e: Errno| {
        let what = format!("{what} of {len_bytes} bytes for {name} (check free memory and limits)");
        Error::os(operation, what, e)
    };
    let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| error("memfd_create", "creation", e))?;
    fs::ftruncate(&fd, len_bytes.saturating_add(hole_bytes)).map_err(|e| error("ftruncate", "sizing", e))?;
    if len_bytes > 0 {
        allocate(&fd, 0, len_bytes).map_err(|e| error("fallocate", "allocation", e))?;
    }
    fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL).map_err(|e| error("F_ADD_SEALS", "sealing", e))?;
    Ok(fd)
}

/// A sealed memfd and a writable mapping of all of it in this process.
struct Mapped {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    /// Reservation of memory for its holes.
    reservation: Option<MemoryReservation>,
    fork_generation: Generation,
}

impl Mapped {
    fn create(name: &str, len_bytes: usize, hole_bytes: usize) -> Result<Self> {
        let fd = sealed_memfd(name, len_bytes as u64, hole_bytes as u64)?;
        let mapping = Arc::new(Mapping::of_file(fd.as_fd(), 0, len_bytes + hole_bytes, true)?);
        fork::set_source(mapping.base(), Some(fd.as_raw_fd()));
        Ok(Self { fd, mapping, reservation: None, fork_generation: Generation::current() })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // The mapping may outlive the descriptor, whose number will be reused.
        fork::set_source(self.mapping.base(), None);
    }
}

/// Memory in a sealed memfd, of its own or shared with other segments ([`crate::SegmentFile`]), with a writable mapping
/// in this process.
pub struct Segment {
    file: Arc<Mapped>,
    offset: usize,
    len_bytes: usize,
}

/// Returns `len_bytes` rounded up to complete pages, at least one.
///
/// # Errors
/// Returns an error if that exceeds an address space.
pub(crate) fn whole_pages(name: &str, len_bytes: usize) -> Result<usize> {
    len_bytes.max(1).checked_next_multiple_of(rustix::param::page_size()).ok_or_else(|| {
        let what = format!("{len_bytes} bytes for {name} are more than an address space");
        Error::invalid("create segment", what)
    })
}

/// A weak reference to a complete segment, which exists as long as one of its parts.
pub(crate) struct SegmentBacking {
    file: Weak<Mapped>,
    len_bytes: usize,
}

impl SegmentBacking {
    /// Returns the segment if one of its parts exists.
    pub(crate) fn get(&self) -> Option<Segment> {
        let Self { ref file, len_bytes } = *self;
        file.upgrade().map(|file| Segment { file, offset: 0, len_bytes })
    }
}

impl Segment {
    /// Creates a zeroed segment of at least `len_bytes`, in complete pages, all of them allocated now so that no later
    /// access can fail.
    ///
    /// # Errors
    /// Returns an error if the length exceeds an address space, or the system has no memory, address space or
    /// descriptor for it.
    pub fn create(name: &str, len_bytes: usize) -> Result<Self> {
        let len_bytes = whole_pages(name, len_bytes)?;
        Ok(Self { file: Arc::new(Mapped::create(name, len_bytes, 0)?), offset: 0, len_bytes })
    }

    /// Like [`Segment::create`], followed by `room_bytes`, in complete pages, that must not be accessed before they are
    /// allocated ([`SharedMem::populate`]).
    ///
    /// # Errors
    /// Returns the errors of [`Segment::create`].
    pub fn create_sparse(name: &str, len_bytes: usize, room_bytes: usize) -> Result<Self> {
        let (len_bytes, room_bytes) = (whole_pages(name, len_bytes)?, whole_pages(name, room_bytes)?);
        let file = Arc::new(Mapped::create(name, len_bytes, room_bytes)?);
        Ok(Self { file, offset: 0, len_bytes: len_bytes + room_bytes })
    }

    /// Creates a segment that is a hole of complete pages: unless all of it is reserved, its pages must be allocated
    /// before they are accessed.
    pub(crate) fn hole(name: &str, len_bytes: usize) -> Result<Self> {
        let mut file = Mapped::create(name, 0, len_bytes)?;
        file.reservation = MemoryReservation::of(len_bytes as u64);
        Ok(Self { file: Arc::new(file), offset: 0, len_bytes })
    }

    /// Returns whether memory for its holes is reserved.
    pub(crate) fn is_reserved(&self) -> bool {
        self.file.reservation.is_some()
    }

    /// Returns a weak reference to all of it.
    pub(crate) fn backing(&self) -> SegmentBacking {
        SegmentBacking { file: Arc::downgrade(&self.file), len_bytes: self.len_bytes }
    }

    /// Returns a part, which keeps the complete segment alive.
    pub(crate) fn part(&self, offset: usize, len_bytes: usize) -> Self {
        assert!(
            offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes),
            "outside of a segment"
        );
        Self { file: self.file.clone(), offset: self.offset + offset, len_bytes }
    }

    /// Returns the memfd, to pass to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    /// Returns the segment's offset in the memfd, from which a peer maps it.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the address of the first byte in this process.
    pub fn base(&self) -> *mut u8 {
        // In bounds: `part` checked that the part is inside its file.
        self.file.mapping.base().wrapping_add(self.offset)
    }

    /// Returns this process's mapping as memory of control words.
    pub fn memory(&self) -> SharedMem {
        SharedMem::new(self.file.mapping.clone()).part(self.offset, self.len_bytes)
    }

    /// Returns the pages from `from` on to the system if other segments share the memfd. The contents must not be
    /// needed any more; later accesses find zeros.
    pub fn discard_from(&self, from: usize) {
        let from = from.next_multiple_of(rustix::param::page_size());
        let is_alone = self.len_bytes == self.file.mapping.len_bytes();
        // A forked child still has the memfd of its parent.
        if is_alone || from >= self.len_bytes || self.file.fork_generation.is_inherited() {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, len_bytes) = ((self.offset + from) as u64, (self.len_bytes - from) as u64);
        // On failure the memory stays allocated until all of the memfd is released.
        let _ = retry_on_intr(|| fs::fallocate(self.fd(), hole, offset, len_bytes));
    }

    /// Maps a peer's segment after checking that it is sealed against resizing and large enough, and that it consists
    /// of ordinary pages: otherwise its owner could kill this process with SIGBUS. A hole in a file of huge pages takes
    /// its page from the machine's pool, which can be empty.
    pub fn map_peer_segment(
        fd: BorrowedFd<'_>,
        offset: u64,
        len_bytes: usize,
        writable: bool,
    ) -> Result<Arc<Mapping>> {
        const OP: &str = "map a peer's segment";
        let seals = fs::fcntl_get_seals(fd).map_err(|e| Error::os(OP, "not a memfd", e))?;
        if !seals.contains(SEALS) {
            return Err(Error::invalid(OP, format!("it is not sealed against resizing (seals {seals:?})")));
        }
        let file_system = fs::fstatfs(fd).map_err(|e| Error::os(OP, "fstatfs", e))?.f_type;
        if file_system as libc::c_long == libc::HUGETLBFS_MAGIC as libc::c_long {
            return Err(Error::invalid(OP, "it is of huge pages, which its owner can take away"));
        }
        let size = fs::fstat(fd).map_err(|e| Error::os(OP, "fstat", e))?.st_size as u64;
        let end =
            offset.checked_add(len_bytes as u64).ok_or_else(|| Error::invalid(OP, "range overflows"))?;
        if len_bytes == 0 || end > size {
            return Err(Error::invalid(
                OP,
                format!("range {offset}+{len_bytes} is not inside its {size} bytes"),
            ));
        }
        Ok(Arc::new(Mapping::of_file(fd, offset, len_bytes, writable)?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn maps_only_sealed_and_large_enough_peer_segments() {
        let good = Segment::create("test", 100).unwrap();
        assert!(Segment::map_peer_segment(good.fd(), 0, 4096, true).is_ok());
        assert!(Segment::map_peer_segment(good.fd(), 0, 4097, true).is_err());
        assert!(Segment::map_peer_segment(good.fd(), 4096, 1, true).is_err());
        assert!(Segment::map_peer_segment(good.fd(), u64::MAX, 4096, true).is_err());
        assert!(fs::ftruncate(good.fd(), 0).is_err(), "a sealed segment can not be truncated");

        let unsealed = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(Segment::map_peer_segment(unsealed.as_fd(), 0, 4096, true).is_err());
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Segment::map_peer_segment(plain.as_fd(), 0, 4096, false).is_err());
    }

    #[test]
    fn maps_no_peer_segment_of_huge_pages() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(huge) = fs::memfd_create("test", flags) else {
            eprintln!("SKIPPED: this kernel has no files of huge pages");
            return;
        };
        let len_bytes = fs::fstat(&huge).unwrap().st_blksize as usize;
        fs::ftruncate(&huge, len_bytes as u64).unwrap();
        fs::fcntl_add_seals(&huge, SEALS).unwrap();
        let refusal = Segment::map_peer_segment(huge.as_fd(), 0, len_bytes, true).err().unwrap();
        assert!(refusal.to_string().contains("huge pages"), "{refusal}");
    }

    #[test]
    fn allocates_a_sparse_segment_when_it_is_populated() {
        let segment = Segment::create_sparse("test", 4096, 8 * 4096).unwrap();
        let allocated_bytes_total = || fs::fstat(segment.fd()).unwrap().st_blocks * 512;
        assert_eq!((segment.len_bytes(), allocated_bytes_total()), (9 * 4096, 4096));
        let mem = segment.memory();
        mem.populate(4096, 4 * 4096).unwrap();
        assert_eq!(allocated_bytes_total(), 5 * 4096);
        mem.store(4096, 7, Ordering::Relaxed);
        // A peer's mapping contains it.
        let mapped = Segment::map_peer_segment(segment.fd(), 0, segment.len_bytes(), true).unwrap();
        let peer = SharedMem::new(mapped);
        peer.populate(4096, 4096).unwrap();
        assert_eq!((peer.load(4096, Ordering::Relaxed), allocated_bytes_total()), (7, 5 * 4096));
    }
}
