//! Functions that prepare, then continue in the C library's function with all their arguments: those with variable
//! arguments, and those of which the C library must see the caller.

use std::ffi::{CStr, c_void};

use crate::libc_next;

/// Returns the C library's function of a name.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc_next::symbol(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Exports functions: each calls `before` with its first three arguments, and jumps to what that returns.
#[cfg(target_arch = "x86_64")]
macro_rules! forward {
    ($($name:ident => $before:path;)*) => {
        $(
            /// See its manual page.
            ///
            /// # Safety
            /// As the manual page says.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> std::ffi::c_int {
                // Arguments in registers are kept, of which `al` counts the vectors; those on the stack stay there.
                std::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "sub rsp, 128",
                    "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2",
                    "movups [rsp + 48], xmm3", "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                    // The caller's address is the fourth argument.
                    "mov rcx, [rsp + 184]",
                    "call {before}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]",
                    "movups xmm3, [rsp + 48]", "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                )
            }
        )*
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use forward;
