//! The thread's `errno`.

use std::ffi::c_int;

/// Returns its value.
pub fn get() -> c_int {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(number: c_int) {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// Sets it, for a call that ends with -1.
pub fn fail(number: c_int) -> c_int {
    set(number);
    -1
}
