//! The thread's `errno`, and how C functions fail.

use std::ffi::c_int;
use std::fmt;
use std::io::Write;

use crate::argument::Returned;

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

/// What an exported function returns: if it is an error number, `errno` is, too, as after the kernel's calls below the
/// original libraries.
#[inline]
pub fn told<R: Returned>(call: &str, returned: R) -> R {
    match returned.error_number(call) {
        0 => {}
        number => set(number),
    }
    returned
}

/// 0, or -1 and `errno`.
pub fn answer(result: Result<(), c_int>) -> c_int {
    result.map_or_else(
        |number| {
            set(number);
            -1
        },
        |()| 0,
    )
}

/// Returns `number`, which is `errno` from here on, and shows its reason in the trace if there is one.
#[cold]
pub fn refused(number: c_int, why: fmt::Arguments<'_>) -> c_int {
    set(number);
    tell_why(why);
    number
}

/// Shows in the trace, if there is one, why a call fails whose result is no error number.
#[cold]
pub fn tell_why(why: fmt::Arguments<'_>) {
    if crate::is_on() {
        crate::note("refused", |line| {
            line.key("why").text(&why.to_string());
        });
    }
}

/// Prints to standard error what an error number cannot say: a line in one piece, also beside other processes' lines.
pub fn complain(library: &str, what: fmt::Arguments<'_>) {
    // Nothing can be done if it does not take it.
    let _ = std::io::stderr().write_all(format!("farcall: {library}: {what}\n").as_bytes());
}
