//! Functions that change mappings.

use std::ffi::{c_int, c_void};

use libc::size_t;

use super::export;
use crate::{pointers, real};

export! {
    fn munmap(at: *mut c_void, len: size_t) -> c_int {
        pointers::before_change();
        // SAFETY: which pages the program protects is its own concern; the kernel changes pages of the program only if
        // it asks for them.
        unsafe { real::munmap(at, len) }
    }

    fn mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int {
        pointers::before_change();
        // SAFETY: which pages the program protects is its own concern; the kernel changes pages of the program only if
        // it asks for them.
        unsafe { real::mprotect(at, len, access) }
    }
}
