//! From errors with words to error numbers.

use std::ffi::c_int;

use farcall_verbs::Error;

/// The number that says it best. The words go to the log.
pub fn number(error: &Error) -> c_int {
    tracing::debug!("{error}");
    match error {
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::Exhausted { .. } => libc::ENOMEM,
        Error::Peer { .. } => libc::EHOSTUNREACH,
        Error::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// The thread's `errno`.
pub fn get() -> c_int {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
pub fn set(number: c_int) {
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// Sets `errno` and returns null: how functions that make objects fail.
pub fn null<T>(number: c_int) -> *mut T {
    set(number);
    std::ptr::null_mut()
}
