//! Error numbers for typed errors. The text of an error is written to the trace, and also to standard error if the
//! machine or a peer is the cause. `errno` contains the number as well. [`refused`] sets it for functions of the
//! tables. Exported functions set it once more when they return (`farcall_trace::errno::set_errno_of`), because
//! dropping objects may change it.

use std::ffi::c_int;
use std::fmt;
use std::sync::{Mutex, PoisonError};

pub use farcall_trace::errno::{get, null, refused, set, to_return_value};
use farcall_verbs::{Error, Result, WithSources};

/// Returns the error number of an error.
pub fn number(error: &Error) -> c_int {
    let number = match error {
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::Exhausted { .. } => libc::ENOMEM,
        Error::Peer { .. } => libc::EHOSTUNREACH,
        Error::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    };
    if matches!(error, Error::Peer { .. } | Error::Os { .. }) {
        complain_once(error.operation(), format_args!("{}", WithSources(error)));
    }
    refused(number, format_args!("{}", WithSources(error)))
}

/// Returns 0, or the error number.
pub fn code(result: Result<()>) -> c_int {
    result.map_or_else(|error| number(&error), |()| 0)
}

/// Prints an error that an error number cannot express and that the program may not have caused (a peer of another
/// user, a missing directory), once for each subject.
pub fn complain_once(subject: &'static str, why: fmt::Arguments<'_>) {
    static SAID: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&subject) {
        said.push(subject);
        crate::complain(why);
    }
}
