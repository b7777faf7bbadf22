//! Jumps of the program out of calls of this library (`siglongjmp` in a signal handler). No destructor of the frames
//! that are left runs, so this module first releases the locks and ends the waits that other threads would wait for.

use std::cell::Cell;
use std::ptr;

use crate::ring::Ring;
use crate::thread;

/// A wait of this thread inside of the kernel.
struct Wait<'a> {
    before: *const Wait<'static>,
    undo: Cell<Option<&'a mut dyn FnMut()>>,
}

/// A lock that this thread holds, or is about to acquire.
#[derive(Clone, Copy)]
pub struct Lock {
    ring: *const Ring,
    at: usize,
    /// Address in the stack.
    frame: usize,
}

thread_local! {
    /// The innermost wait of this thread; null if there is none.
    static WAITS: Cell<*const Wait<'static>> = const { Cell::new(ptr::null()) };
    static LOCK: Cell<Option<Lock>> = const { Cell::new(None) };
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
pub fn lock(ring: &Ring, at: usize) -> Option<Lock> {
    let lock = Lock { ring: ptr::from_ref(ring), at, frame: ptr::from_ref(&at).addr() };
    LOCK.replace(Some(lock))
}

/// Called after this thread has released a lock, or has not got it.
#[inline]
pub fn unlock(before: Option<Lock>) {
    LOCK.set(before);
}

/// Called before this thread jumps to a stack that ends at `stack`.
fn leave(stack: usize) {
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
        // SAFETY: the frame that has the lock has a use of its connection, and so of the ring.
        unsafe { &*lock.ring }.release(lock.at, thread::id());
    }
}

/// Returns whether an address is in the stack on which the signal handler runs that is running, if it has one of its
/// own.
fn is_on_handlers_stack(stack: usize) -> bool {
    // SAFETY: zeros are a valid description of a stack; the kernel writes one.
    unsafe {
        let mut own: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut own) == 0
            && own.ss_flags & libc::SS_ONSTACK != 0
            && (own.ss_sp.addr()..own.ss_sp.addr() + own.ss_size).contains(&stack)
    }
}

#[cfg(target_arch = "x86_64")]
mod by_name {
    use std::ffi::{CStr, c_void};
    use std::ptr;
    use std::sync::atomic::AtomicPtr;
    use std::sync::atomic::Ordering::Relaxed;

    use super::{LOCK, WAITS, is_on_handlers_stack, leave};
    use crate::calls::forward::{forward, next};

    /// Place of the stack pointer among the registers of a `jmp_buf`.
    const STACK_AT: usize = 6;

    /// Returns the end of the stack that a jump leads to. The C library stores it encoded.
    ///
    /// # Safety
    /// `setjmp` has filled the buffer.
    unsafe fn target(registers: *const u64) -> usize {
        let guard: u64;
        // SAFETY: the thread's control block has the guard there (`PTR_MANGLE`).
        unsafe {
            std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
            ((*registers.add(STACK_AT)).rotate_right(17) ^ guard) as usize
        }
    }

    /// # Safety
    /// As [`target`].
    unsafe fn before(registers: *const u64, name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
        if !WAITS.get().is_null() || LOCK.get().is_some() {
            // SAFETY: this function's contract.
            let stack = unsafe { target(registers) };
            if !is_on_handlers_stack(stack) {
                leave(stack);
            }
        }
        let mut function = found.load(Relaxed);
        if function.is_null() {
            function = next(name);
            found.store(function, Relaxed);
        }
        function
    }

    /// Functions that run before jumps: each returns the C library's function.
    macro_rules! before_jumps {
        ($($name:ident => $symbol:literal;)*) => {
            $(
                unsafe extern "C" fn $name(registers: *const u64) -> *mut c_void {
                    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
                    // SAFETY: the program passes a buffer that `setjmp` has filled, as longjmp(3) requires.
                    unsafe { before(registers, $symbol, &FOUND) }
                }
            )*
        };
    }

    before_jumps! {
        before_longjmp => c"longjmp";
        before_longjmp_other => c"_longjmp";
        before_siglongjmp => c"siglongjmp";
        before_longjmp_chk => c"__longjmp_chk";
    }

    forward! {
        longjmp => before_longjmp;
        _longjmp => before_longjmp_other;
        siglongjmp => before_siglongjmp;
        __longjmp_chk => before_longjmp_chk;
    }
}
