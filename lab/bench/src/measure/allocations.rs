//! Counts heap allocations of this process; another process can read the count.
//!
//! The binary installs [`CountingAllocator`], which counts only after [`count_allocations`] was called in this
//! process, or after a parent created [`SharedAllocations`] and its child published its count in the inherited memory.

use farcall_shm::Segment;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A counter on a cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

static LOCAL: Line = Line(AtomicU64::new(0));
/// Counter of this process. Null until counting is requested; then `LOCAL`, or shared memory that remains mapped until
/// the process exits.
static COUNTER: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

#[inline]
fn counter() -> Option<&'static AtomicU64> {
    // SAFETY: the pointer is null, that of the static `LOCAL`, or the base of a mapping that `publish_in` created and
    // leaked, so it is valid until the process exits. Both are aligned, and every bit pattern is a valid counter.
    unsafe { COUNTER.load(Ordering::Relaxed).as_ref() }
}

/// The system's allocator, which increments a relaxed counter per allocation while counting is enabled. Install it
/// with `#[global_allocator]`.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingAllocator;

// SAFETY: every call is passed to `System` unchanged, which fulfils the contract of `GlobalAlloc`; counting accesses
// only an atomic and allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::alloc` for `layout`, which is passed unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the contract of `GlobalAlloc::dealloc`, `memory` was allocated by this allocator with `layout`;
        // all its allocations come from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller fulfils the contract of `GlobalAlloc::alloc_zeroed` for `layout`, which is passed
        // unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        count();
        // SAFETY: by the contract of `GlobalAlloc::realloc`, `memory` was allocated by this allocator with `layout`
        // and `len_bytes` is a valid size; all its allocations come from `System`.
        unsafe { System.realloc(memory, layout, len_bytes) }
    }
}

#[inline]
fn count() {
    if let Some(counter) = counter() {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Enables the count of allocations of this process, if it installed [`CountingAllocator`] and does not count yet.
pub fn count_allocations() {
    let local = (&raw const LOCAL.0).cast_mut();
    // Fails if counting is already enabled.
    let _ = COUNTER.compare_exchange(std::ptr::null_mut(), local, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns the number of counted allocations (`alloc`, `alloc_zeroed`, `realloc`) of this process; 0 while counting is
/// disabled.
pub fn own_allocations() -> u64 {
    counter().map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// A counter in sealed shared memory that a child process increments and its parent reads.
pub struct SharedAllocations {
    segment: Segment,
}

impl SharedAllocations {
    /// Creates a counter with the value zero.
    ///
    /// # Errors
    /// Returns an error if the system has no memory or descriptors left.
    pub fn create() -> farcall_verbs::Result<Self> {
        Ok(Self { segment: Segment::create("farcall-allocations", size_of::<Line>())? })
    }

    /// Returns the descriptor of the memory, for a child to inherit.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Returns the count of the child, even after it has exited.
    pub fn read(&self) -> u64 {
        self.segment.memory().load(0, Ordering::Relaxed)
    }

    /// Makes this process count in `memory` from now on. The mapping remains until the process exits.
    ///
    /// # Errors
    /// Returns an error if `memory` is not sealed shared memory of the right size, or cannot be mapped.
    pub fn publish_in(memory: BorrowedFd<'_>) -> farcall_verbs::Result<()> {
        let mapping = Segment::map_peer_segment(memory, 0, size_of::<Line>(), true)?;
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
        // Other tests of this process continue to count in the published memory, so it must outlive the parent's
        // mapping.
        drop(shared);
        assert!(own_allocations() > 0);
    }
}
