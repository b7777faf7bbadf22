//! From errors with words to error numbers; the words go to the trace, and to people where the machine or a peer is the cause.

use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use farcall_verbs::Error;

/// The number that says it best.
pub fn number(error: &Error) -> c_int {
    let number = match error {
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::Exhausted { .. } => libc::ENOMEM,
        Error::Peer { .. } => libc::EHOSTUNREACH,
        Error::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    };
    if matches!(error, Error::Peer { .. } | Error::Os { .. }) {
        complain_once(error.operation(), format_args!("{error}"));
    }
    refused(number, format_args!("{error}"))
}

/// A number whose reason is shown in the trace, if there is one.
#[cold]
pub fn refused(number: c_int, why: fmt::Arguments<'_>) -> c_int {
    if farcall_trace::is_on() {
        farcall_trace::note("refused", |line| {
            line.key("why");
            line.text(&why.to_string());
        });
    }
    number
}

/// Tells people what no number says and the program may not have caused: another user's peer, a folder that is not there.
/// Once for each subject.
pub fn complain_once(subject: &'static str, why: fmt::Arguments<'_>) {
    static SAID: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&subject) {
        said.push(subject);
        crate::complain(why);
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
