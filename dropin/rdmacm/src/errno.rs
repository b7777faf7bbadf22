//! Error numbers: functions of librdmacm return -1 and set `errno`.

use std::ffi::c_int;

pub use farcall_trace::errno::{answer, get, null, refused, tell_why};

/// An error number.
pub type Errno = c_int;

/// `EINVAL`; the trace says why.
pub fn invalid(why: impl std::fmt::Display) -> Errno {
    refused(libc::EINVAL, format_args!("{why}"))
}

/// What the kernel says to something that a call needs, for `map_err`; the trace says what that was.
pub fn system<E: Into<std::io::Error>>(what: &str) -> impl Fn(E) -> Errno {
    move |error| {
        let error = error.into();
        refused(error.raw_os_error().unwrap_or(libc::EIO), format_args!("{what}: {error}"))
    }
}

/// What a function of libibverbs returns: 0 or an error number.
pub fn check(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        // Some say -1 and set `errno`.
        -1 => Err(get()),
        other => Err(other.abs()),
    }
}

/// An object that a function of libibverbs made, or why not.
pub fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(get()) } else { Ok(object) }
}
