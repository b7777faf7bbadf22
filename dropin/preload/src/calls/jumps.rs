//! Functions that jump out of calls.
#![cfg(target_arch = "x86_64")]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

use super::forward::{forward, next};
use crate::jumps;

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

/// Index of the stack pointer among the registers of a `jmp_buf`.
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
/// The contract of [`target`].
unsafe fn before(registers: *const u64, name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    if jumps::has_frames() {
        // SAFETY: this function's contract.
        let stack = unsafe { target(registers) };
        if !is_on_handlers_stack(stack) {
            jumps::leave(stack);
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
