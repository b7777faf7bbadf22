//! Error numbers: functions of librdmacm return -1 and set `errno`.

use std::ffi::c_int;

pub use farcall_trace::errno::{get, log_why, null, refused, to_return_value};

/// An error number.
pub type Errno = c_int;

/// Returns `EINVAL`; the trace contains the reason.
pub fn invalid(why: impl std::fmt::Display) -> Errno {
    refused(libc::EINVAL, format_args!("{why}"))
}

/// Returns a function for `map_err` that converts a system error in the operation `what`. The trace contains both.
pub fn system<E: Into<std::io::Error>>(what: &str) -> impl Fn(E) -> Errno {
    move |error| {
        let error = error.into();
        refused(error.raw_os_error().unwrap_or(libc::EIO), format_args!("{what}: {error}"))
    }
}

/// Converts the result of a libibverbs function: 0 or an error number.
pub fn check(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        // Some functions return -1 and set `errno`.
        -1 => Err(get()),
        other => Err(other.abs()),
    }
}

/// Converts the result of a libibverbs function that creates an object: null means that `errno` contains the error.
pub fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(get()) } else { Ok(object) }
}
