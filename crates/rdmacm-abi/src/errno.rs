//! Error numbers: functions of librdmacm return -1 and set `errno`.

use std::ffi::c_int;

/// An error number.
pub type Errno = c_int;

/// Sets `errno`.
pub fn set(number: Errno) {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// The thread's `errno`.
pub fn last() -> Errno {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// 0, or -1 and `errno`.
pub fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => {
            set(number);
            -1
        }
    }
}

/// Sets `errno` and returns null: how functions that make objects fail.
pub fn null<T>(number: Errno) -> *mut T {
    set(number);
    std::ptr::null_mut()
}

/// What a function of libibverbs returns: 0 or an error number.
pub fn check(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        // Some say -1 and set `errno`.
        -1 => Err(last()),
        other => Err(other.abs()),
    }
}

/// An object that a function of libibverbs made, or why not.
pub fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(last()) } else { Ok(object) }
}
