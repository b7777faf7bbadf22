//! The thread's `errno`, and how C functions report errors.

use std::ffi::c_int;
use std::fmt;
use std::io::Write;

use crate::argument::Returned;

/// Returns the thread's `errno`.
pub fn get() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
pub fn set(number: c_int) {
    // SAFETY: `__errno_location` returns a valid pointer to the calling thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// Sets `errno` and returns null, as functions that create objects do on failure.
pub fn null<T>(number: c_int) -> *mut T {
    set(number);
    std::ptr::null_mut()
}

/// Sets `errno` to the result of an exported function if that is an error number, as the original libraries' system
/// calls do.
#[inline]
pub fn set_errno_of<R: Returned>(call: &str, returned: R) -> R {
    match returned.error_number(call) {
        0 => {}
        number => set(number),
    }
    returned
}

/// Converts a result to 0, or to -1 with `errno` set.
pub fn to_return_value(result: Result<(), c_int>) -> c_int {
    result.map_or_else(
        |number| {
            set(number);
            -1
        },
        |()| 0,
    )
}

/// Sets `errno` to `number` and returns it. Writes the reason to the trace if there is one.
#[cold]
pub fn refused(number: c_int, why: fmt::Arguments<'_>) -> c_int {
    set(number);
    log_why(why);
    number
}

/// Writes to the trace, if there is one, why a call fails whose result is not an error number.
#[cold]
pub fn log_why(why: fmt::Arguments<'_>) {
    if crate::is_on() {
        crate::note("refused", |line| {
            line.key("why").text(&why.to_string());
        });
    }
}

/// Prints to standard error an error that an error number cannot express. The line is written at once, so that it does
/// not mix with those of other processes.
pub fn complain(library: &str, what: fmt::Arguments<'_>) {
    // A failure to write it cannot be reported.
    let _ = std::io::stderr().write_all(format!("farcall: {library}: {what}\n").as_bytes());
}
