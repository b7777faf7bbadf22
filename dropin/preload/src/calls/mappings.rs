//! Functions that change mappings.

use std::ffi::{c_int, c_void};

use libc::size_t;

use super::export;
use crate::{pointers, real};

export! {
    fn munmap(at: *mut c_void, len: size_t) -> c_int {
        pointers::before_change();
        // SAFETY: the program unmaps what it has mapped itself, and refers to none of it afterwards, as munmap(2) requires.
        unsafe { real::munmap(at, len) }
    }

    fn mprotect(at: *mut c_void, len: size_t, access: c_int) -> c_int {
        pointers::before_change();
        // SAFETY: the program protects what it has mapped itself, and accesses it accordingly, as mprotect(2) requires.
        unsafe { real::mprotect(at, len, access) }
    }
}
