//! Jumps of the program out of calls of this library (`siglongjmp` in a signal handler). No destructor of the frames
//! that are left runs, so this module first releases the locks and ends the waits that other threads would wait for.

use std::cell::Cell;
use std::ptr;

use crate::memory::Memory;
use crate::thread;

/// A wait of this thread inside of the kernel.
struct Wait<'a> {
    before: *const Wait<'static>,
    undo: Cell<Option<&'a mut dyn FnMut()>>,
}

/// A lock that this thread holds, or is about to acquire.
#[derive(Clone, Copy)]
pub struct HeldLock {
    mem: *const Memory,
    at: usize,
    /// Address in the stack.
    frame: usize,
}

thread_local! {
    /// The innermost wait of this thread; null if there is none.
    static WAITS: Cell<*const Wait<'static>> = const { Cell::new(ptr::null()) };
    static LOCK: Cell<Option<HeldLock>> = const { Cell::new(None) };
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        WAITS.set(self.before);
    }
}

/// Runs `wait` and returns its result. If the program jumps out of `wait`, calls `undo`; the caller is not continued.
pub fn wait<T>(undo: &mut dyn FnMut(), wait: impl FnOnce() -> T) -> T {
    let entry = Wait { before: WAITS.get(), undo: Cell::new(Some(undo)) };
    WAITS.set(ptr::from_ref(&entry).cast());
    let result = wait();
    drop(entry);
    result
}

/// Called before this thread takes a lock. Returns what [`unlock`] gets.
#[inline]
pub fn lock(mem: &Memory, at: usize) -> Option<HeldLock> {
    let lock = HeldLock { mem: ptr::from_ref(mem), at, frame: ptr::from_ref(&at).addr() };
    LOCK.replace(Some(lock))
}

/// Called after this thread has released a lock, or has not got it.
#[inline]
pub fn unlock(before: Option<HeldLock>) {
    LOCK.set(before);
}

/// Returns whether this thread has a lock or a wait that a jump could leave.
#[cfg(target_arch = "x86_64")]
pub fn has_frames() -> bool {
    !WAITS.get().is_null() || LOCK.get().is_some()
}

/// Called before this thread jumps to a stack that ends at `stack`.
#[cfg(target_arch = "x86_64")]
pub fn leave(stack: usize) {
    while let Some(entry) = {
        // SAFETY: null, or a wait that this thread is inside of, below the present frame.
        unsafe { WAITS.get().as_ref() }
    } && ptr::from_ref(entry).addr() < stack
    {
        WAITS.set(entry.before);
        if let Some(undo) = entry.undo.take() {
            undo();
        }
    }
    if let Some(lock) = LOCK.get().filter(|lock| lock.frame < stack) {
        LOCK.set(None);
        // SAFETY: the frame that has the lock has a use of its connection, and so of the ring and its memory.
        unsafe { &*lock.mem }.compare_exchange(lock.at, thread::id(), 0);
    }
}
