//! Sealed memfds: memory that can be handed to another process and cannot be pulled from under its mappers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use farcall_verbs::{Error, Result};
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::SharedMem;
use crate::fork;

/// A mapping that is unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is a range of addresses; how its bytes are accessed is `SharedMem`'s concern.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, len_bytes: usize, writable: bool) -> Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), len_bytes, prot, MapFlags::SHARED, fd, offset) }
            .map_err(|e| Error::os("mmap", format!("map {len_bytes} bytes of shared memory"), e))?;
        let base = NonNull::new(base.cast()).expect("mmap returns no null");
        fork::add_mapping(base.as_ptr(), len_bytes, writable);
        Ok(Self { base, len_bytes })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        fork::remove_mapping(self.base());
        // SAFETY: we made this mapping and every user holds an Arc of us. A failure would leak it, which is safe.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

const SEALS: SealFlags = SealFlags::from_bits_retain(SealFlags::SHRINK.bits() | SealFlags::GROW.bits());

/// A sealed memfd with our own writable mapping of it.
pub(crate) struct Segment {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Segment {
    /// Creates a zeroed segment of at least `len_bytes`, whole pages, all of them allocated now so that no later touch
    /// can fail.
    pub(crate) fn create(name: &str, len_bytes: usize) -> Result<Self> {
        let what = |what: &str| {
            format!("{what} of a {len_bytes}-byte segment for {name} (check free memory and limits)")
        };
        let page = rustix::param::page_size();
        let len_bytes = len_bytes.max(1).checked_next_multiple_of(page).ok_or_else(|| {
            Error::invalid(
                "create segment",
                format!("{len_bytes} bytes for {name} are more than an address space"),
            )
        })?;
        let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::os("memfd_create", what("creation"), e))?;
        fs::ftruncate(&fd, len_bytes as u64).map_err(|e| Error::os("ftruncate", what("sizing"), e))?;
        fs::fallocate(&fd, fs::FallocateFlags::empty(), 0, len_bytes as u64)
            .map_err(|e| Error::os("fallocate", what("allocation"), e))?;
        fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL)
            .map_err(|e| Error::os("F_ADD_SEALS", what("sealing"), e))?;
        let mapping = Arc::new(Mapping::new(fd.as_fd(), 0, len_bytes, true)?);
        fork::set_source(mapping.base(), Some(fd.as_raw_fd()));
        Ok(Self { fd, mapping })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn memory(&self) -> SharedMem {
        SharedMem::new(self.mapping.clone())
    }

    /// Maps a peer's segment after checking that it is sealed against resizing and large enough: otherwise its owner
    /// could kill us with SIGBUS.
    pub(crate) fn map_foreign(
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
        let size = fs::fstat(fd).map_err(|e| Error::os(OP, "fstat", e))?.st_size as u64;
        let end =
            offset.checked_add(len_bytes as u64).ok_or_else(|| Error::invalid(OP, "range overflows"))?;
        if len_bytes == 0 || end > size {
            return Err(Error::invalid(
                OP,
                format!("range {offset}+{len_bytes} is not inside its {size} bytes"),
            ));
        }
        Ok(Arc::new(Mapping::new(fd, offset, len_bytes, writable)?))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // The mapping may live on; the descriptor's number will be another's.
        fork::set_source(self.mapping.base(), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_segments_must_be_sealed_and_large_enough() {
        let good = Segment::create("test", 100).unwrap();
        assert!(Segment::map_foreign(good.fd(), 0, 4096, true).is_ok());
        assert!(Segment::map_foreign(good.fd(), 0, 4097, true).is_err());
        assert!(Segment::map_foreign(good.fd(), 4096, 1, true).is_err());
        assert!(Segment::map_foreign(good.fd(), u64::MAX, 4096, true).is_err());
        assert!(fs::ftruncate(good.fd(), 0).is_err(), "a sealed segment can not be truncated");

        let unsealed = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(Segment::map_foreign(unsealed.as_fd(), 0, 4096, true).is_err());
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Segment::map_foreign(plain.as_fd(), 0, 4096, false).is_err());
    }
}
