//! An allocator that counts the allocations of each thread. Tests of other packages include this file, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every method forwards to the system allocator, which satisfies the contract of `GlobalAlloc`; counting
// allocates no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: `alloc` and `System.alloc` have the same contract: `layout` has a non-zero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` was returned by `System.alloc` in `alloc` above for the same `layout`, by the contract of
        // `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of the calling thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
