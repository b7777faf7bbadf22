//! Counting heap allocations of this process, readable from another one.
//!
//! The binary installs [`CountingAllocator`]. A parent that wants to know what its child allocates creates
//! [`SharedAllocations`] and lets the child inherit the memory; the child moves its counters there.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The counters, on a cache line of their own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Cells {
    allocations: AtomicU64,
    frees: AtomicU64,
    allocated_bytes: AtomicU64,
}

static LOCAL: Cells =
    Cells { allocations: AtomicU64::new(0), frees: AtomicU64::new(0), allocated_bytes: AtomicU64::new(0) };
/// Where this process counts: `LOCAL`, or shared memory that stays mapped until the process ends.
static CELLS: AtomicPtr<Cells> = AtomicPtr::new((&raw const LOCAL).cast_mut());

fn cells() -> &'static Cells {
    // SAFETY: the pointer is that of `LOCAL` or of a mapping made by `publish_in`, which is never unmapped; both are
    // aligned and hold only atomics, for which every bit pattern is valid.
    unsafe { &*CELLS.load(Ordering::Relaxed) }
}

/// The system's allocator with three relaxed counters in front. Install it with `#[global_allocator]`.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

// SAFETY: every call is passed on to `System` unchanged; counting touches only atomics and allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        cells().frees.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on; `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        count_allocation(len_bytes);
        cells().frees.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on; `memory` came from `System`.
        unsafe { System.realloc(memory, layout, len_bytes) }
    }
}

fn count_allocation(len_bytes: usize) {
    let cells = cells();
    cells.allocations.fetch_add(1, Ordering::Relaxed);
    cells.allocated_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
}

/// Heap operations since a process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AllocationCounts {
    /// Calls of `alloc`, `alloc_zeroed` and `realloc`.
    pub allocations: u64,
    /// Calls of `dealloc` and `realloc`.
    pub frees: u64,
    /// Bytes asked for.
    pub allocated_bytes: u64,
}

impl AllocationCounts {
    /// Those of this process; all zero unless it installed [`CountingAllocator`].
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::load(cells())
    }

    fn load(cells: &Cells) -> Self {
        Self {
            allocations: cells.allocations.load(Ordering::Relaxed),
            frees: cells.frees.load(Ordering::Relaxed),
            allocated_bytes: cells.allocated_bytes.load(Ordering::Relaxed),
        }
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            allocations: self.allocations.saturating_sub(earlier.allocations),
            frees: self.frees.saturating_sub(earlier.frees),
            allocated_bytes: self.allocated_bytes.saturating_sub(earlier.allocated_bytes),
        }
    }
}

/// Counters in sealed shared memory that a child process counts in and its parent reads.
#[derive(Debug)]
pub struct SharedAllocations {
    memory: OwnedFd,
    cells: NonNull<Cells>,
}

// SAFETY: the mapping is private to this value and holds only atomics.
unsafe impl Send for SharedAllocations {}
// SAFETY: as above.
unsafe impl Sync for SharedAllocations {}

impl SharedAllocations {
    /// Fresh counters at zero.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub fn create() -> rustix::io::Result<Self> {
        let memory = memfd_create("farcall-allocations", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, size_of::<Cells>() as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let cells = map_cells(memory.as_fd())?;
        Ok(Self { memory, cells })
    }

    /// The memory for a child to inherit.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// What the child has counted, also after it died.
    #[must_use]
    pub fn read(&self) -> AllocationCounts {
        // SAFETY: the mapping lives as long as `self`, is aligned and holds only atomics.
        AllocationCounts::load(unsafe { self.cells.as_ref() })
    }

    /// Makes this process count in `memory` from now on. The mapping stays until the process ends.
    ///
    /// # Errors
    /// When `memory` is not sealed shared memory of the right size, or cannot be mapped.
    pub fn publish_in(memory: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let sealed = rustix::fs::fcntl_get_seals(memory)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(memory)?.st_size < size_of::<Cells>() as i64 {
            return Err(rustix::io::Errno::INVAL);
        }
        CELLS.store(map_cells(memory)?.as_ptr(), Ordering::Release);
        Ok(())
    }
}

impl Drop for SharedAllocations {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map_cells` with this length, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.cells.as_ptr().cast(), size_of::<Cells>()) };
    }
}

fn map_cells(memory: BorrowedFd<'_>) -> rustix::io::Result<NonNull<Cells>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let address = unsafe {
        mmap(
            std::ptr::null_mut(),
            size_of::<Cells>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            memory,
            0,
        )?
    };
    NonNull::new(address.cast()).ok_or(rustix::io::Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn allocations_are_counted_here_and_in_shared_memory() {
        let before = AllocationCounts::of_this_process();
        drop(std::hint::black_box(vec![0u8; 4096]));
        let grown = AllocationCounts::of_this_process().since(before);
        assert!(grown.allocations >= 1 && grown.frees >= 1 && grown.allocated_bytes >= 4096, "{grown:?}");

        let shared = SharedAllocations::create().unwrap();
        assert_eq!(shared.read(), AllocationCounts::default());
        SharedAllocations::publish_in(shared.fd()).unwrap();
        drop(std::hint::black_box(vec![0u8; 8192]));
        assert!(shared.read().allocated_bytes >= 8192);
        // Other tests of this process keep counting in the published memory: it must outlive the parent's mapping.
        drop(shared);
        assert!(AllocationCounts::of_this_process().allocations >= 1);
    }

    #[test]
    fn foreign_memory_is_refused() {
        let unsealed = memfd_create("farcall-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        assert!(SharedAllocations::publish_in(unsealed.as_fd()).is_err());
        let truncated =
            memfd_create("farcall-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&truncated, SealFlags::SHRINK).unwrap();
        assert!(SharedAllocations::publish_in(truncated.as_fd()).is_err());
    }
}
