//! Counting heap allocations of this process, readable from another one.
//!
//! The binary installs [`CountingAllocator`], which counts nothing until it is asked to: by [`count_allocations`] here,
//! or by a parent that creates [`SharedAllocations`] and lets its child inherit the memory to count in.

use farcall_shm::Segment;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// On a cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

static LOCAL: Line = Line(AtomicU64::new(0));
/// Where this process counts: null as long as nobody asked; then `LOCAL`, or shared memory that stays mapped until the
/// process ends.
static COUNTER: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

#[inline]
fn counter() -> Option<&'static AtomicU64> {
    // SAFETY: the pointer is null, that of `LOCAL`, or of a mapping made by `publish_in`, which is never unmapped; both
    // are aligned, and every bit pattern is a valid counter.
    unsafe { COUNTER.load(Ordering::Relaxed).as_ref() }
}

/// The system's allocator with a relaxed counter in front, while it is asked to count. Install it with
/// `#[global_allocator]`.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

// SAFETY: every call is passed on to `System` unchanged; counting touches only an atomic and allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on; `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on; `memory` came from `System`.
        unsafe { System.realloc(memory, layout, len_bytes) }
    }
}

#[inline]
fn count() {
    if let Some(counter) = counter() {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Begins to count the allocations of this process, if it installed [`CountingAllocator`] and does not count yet.
pub fn count_allocations() {
    let local = (&raw const LOCAL.0).cast_mut();
    // Fails if it counts already.
    let _ = COUNTER.compare_exchange(std::ptr::null_mut(), local, Ordering::Relaxed, Ordering::Relaxed);
}

/// Allocations (`alloc`, `alloc_zeroed`, `realloc`) that this process has counted; 0 as long as it does not count.
#[must_use]
pub fn own_allocations() -> u64 {
    counter().map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// A counter in sealed shared memory that a child process counts in and its parent reads.
pub struct SharedAllocations {
    segment: Segment,
}

impl SharedAllocations {
    /// A counter at zero.
    ///
    /// # Errors
    /// When the system has no memory or descriptors left.
    pub fn create() -> farcall_verbs::Result<Self> {
        Ok(Self { segment: Segment::create("farcall-allocations", size_of::<Line>())? })
    }

    /// The memory for a child to inherit.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// What the child has counted, also after it died.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.segment.memory().load(0, Ordering::Relaxed)
    }

    /// Makes this process count in `memory` from now on. The mapping stays until the process ends.
    ///
    /// # Errors
    /// When `memory` is not sealed shared memory of the right size, or cannot be mapped.
    pub fn publish_in(memory: BorrowedFd<'_>) -> farcall_verbs::Result<()> {
        let mapping = Segment::map_foreign(memory, 0, size_of::<Line>(), true)?;
        COUNTER.store(mapping.base().cast(), Ordering::Release);
        std::mem::forget(mapping);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn allocations_are_counted_here_and_in_shared_memory() {
        drop(std::hint::black_box(vec![0u8; 4096]));
        assert_eq!(own_allocations(), 0);
        count_allocations();
        let before = own_allocations();
        drop(std::hint::black_box(vec![0u8; 4096]));
        assert!(own_allocations() > before);

        let shared = SharedAllocations::create().unwrap();
        assert_eq!(shared.read(), 0);
        SharedAllocations::publish_in(shared.fd()).unwrap();
        drop(std::hint::black_box(vec![0u8; 8192]));
        assert!(shared.read() > 0);
        // Other tests of this process keep counting in the published memory: it must outlive the parent's mapping.
        drop(shared);
        assert!(own_allocations() > 0);
    }
}
